#!/usr/bin/env bash
# Creates .venv with the pinned stack, mmcv's compiled operators and mmsoft in editable mode.
# Each step leaves a stamp named after what it depends on, so a second run does only what is missing or has changed.
#   PYTHON=python3.10 tools/setup_env.sh    chooses the interpreter (3.9-3.11)
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
STAMPS=$VENV/stamps
R=requirements

die() { echo "mmsoft setup: $*" >&2; exit 1; }

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

supported() { case "$1" in 3.9 | 3.10 | 3.11) return 0 ;; *) return 1 ;; esac }

choose_python() {
    if [ -n "${PYTHON:-}" ]; then
        found=$(version_of "$PYTHON") || die "PYTHON=$PYTHON does not run; give a Python 3.9, 3.10 or 3.11 interpreter."
        supported "$found" || die "PYTHON=$PYTHON is Python $found, but the pinned stack needs 3.9, 3.10 or 3.11."
        return
    fi
    for PYTHON in "$VENV/bin/python" python3 python3.11 python3.10 python3.9; do
        found=$(version_of "$PYTHON") && supported "$found" && return
    done
    die "no Python 3.9, 3.10 or 3.11 was found on PATH; install one or name it, as in: PYTHON=/path/to/python3.11 make setup"
}

check_build_tools() {
    command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null ||
        die "no C++ compiler was found (mmcv's operators are compiled); install one, for example the package g++ or build-essential, or set CXX."
    "$PYTHON" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
        die "the C headers of $PYTHON are missing (mmcv's operators are compiled); install them, for example the package python$found-dev."
    "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null ||
        die "$PYTHON cannot create virtual environments; install its venv module, for example the package python$found-venv."
}

# step NAME FILES... -- COMMAND...: runs COMMAND unless it has already succeeded with these FILES
step() {
    local name=$1 files=() stamp
    shift
    while [ "$1" != -- ]; do files+=("$1"); shift; done
    shift
    stamp=$STAMPS/$name.$(cat /dev/null "${files[@]+"${files[@]}"}" | cksum | cut -d' ' -f1)
    [ -e "$stamp" ] && return
    echo "mmsoft setup: $name"
    "$@"
    rm -f "$STAMPS/$name".*
    touch "$stamp"
}

pip_install() { "$VENV/bin/python" -m pip install --disable-pip-version-check -c $R/pinned.txt "$@"; }

create_venv() { rm -rf $VENV; "$PYTHON" -m venv $VENV; mkdir -p $STAMPS; }

choose_python
if [ "$(version_of $VENV/bin/python || true)" != "$found" ] || [ ! -e $STAMPS/created ]; then
    check_build_tools
    echo "mmsoft setup: creating $VENV with Python $found; the whole setup takes about 15 minutes the first time"
    create_venv
    touch $STAMPS/created
fi

step torch $R/pinned.txt $R/build.txt -- pip_install -r $R/build.txt torch torchvision numpy
# Compiled on every machine, because no ready wheel fits; pip keeps the wheel it builds in its cache.
# The output goes through unfiltered (-v) so that the longest step shows that it moves.
step mmcv $R/pinned.txt $R/build.txt -- env MMCV_WITH_OPS=1 MAX_JOBS="${MAX_JOBS:-$(nproc)}" \
    "$VENV/bin/python" -m pip install --disable-pip-version-check -c $R/pinned.txt --no-build-isolation -v mmcv
step libraries $R/*.txt -- pip_install -r $R/runtime.txt -r $R/mminstall.txt -r $R/optional.txt -r $R/tests.txt ftfy regex
step mmsoft setup.py $R/*.txt -- pip_install --no-build-isolation --no-deps -e .
