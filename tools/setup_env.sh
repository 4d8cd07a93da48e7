#!/usr/bin/env bash
# Creates .venv with a pinned stack, mmcv's compiled operators and mmsoft in editable mode.
# Each step leaves a stamp named after what it depends on, so a second run does only what is missing or has changed.
#   PYTHON=python3.10 tools/setup_env.sh    chooses the interpreter
#   STACK=latest tools/setup_env.sh         makes .venv-latest, of requirements/stacks/latest.txt
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "mmsoft setup: $*"; }
die() { say "$*" >&2; exit 1; }

STACK=${STACK:-stable}
R=requirements
PINS=$R/stacks/$STACK.txt
[ -e "$PINS" ] || die "STACK=$STACK is none of those in $R/stacks: $(cd $R/stacks && echo *)"
VENV=.venv
[ "$STACK" = stable ] || VENV=.venv-$STACK
STAMPS=$VENV/stamps
PYTHONS=$(sed -n 's/^# Python //p' "$PINS")

# pinned PATTERN: the distributions of these names that the stack has; the forks have names of their own.
pinned() { sed -nE "s/^($1)==.*/\1/p" "$PINS"; }
MMCV=$(pinned '(onedl-)?mmcv(-lite)?')
HOSTS=$(pinned '(onedl-)?mm(engine|det|detection|segmentation|pretrain)')
MIM=$(pinned 'openmim|onedl-mim')

# Prints the version of an interpreter and its path outside virtual environments, which outlives $VENV.
probe() {
    "$1" -c 'import sys; print("%d.%d %s" % (sys.version_info[:2] + (getattr(sys, "_base_executable", ""),)))' 2>/dev/null
}

supported() { [[ " $PYTHONS " = *" $1 "* ]]; }

choose_python() {
    local candidates candidate
    read -ra candidates <<<"$VENV/bin/python python${PYTHONS// / python} python3"
    [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        read -r VERSION BASE < <(probe "$candidate") && supported "$VERSION" && return
    done
    local needed="Python ${PYTHONS// / or }"
    [ -n "${PYTHON:-}" ] || die "no $needed was found on PATH; install one or name it, as in: PYTHON=/path/to/python make setup"
    [ -n "$VERSION" ] || die "PYTHON=$PYTHON does not run; give an interpreter of $needed."
    die "PYTHON=$PYTHON is Python $VERSION, but the stack needs $needed."
}

check_venv_tools() {
    "$BASE" -c 'import venv, ensurepip' 2>/dev/null ||
        die "$BASE cannot create virtual environments; install its venv module, for example the package python$VERSION-venv."
}

compiled() { [[ $MMCV != *-lite ]]; }

has_gpu() { nvidia-smi -L >/dev/null 2>&1; }

# What mmcv's operators are compiled for: "cpu", or the release of CUDA's compiler. FORCE_CUDA=1 is for login nodes.
compile_device() {
    local nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
    [ -x "$nvcc" ] || nvcc=$(command -v nvcc || true)
    if [ -n "$nvcc" ] && { [ "${FORCE_CUDA:-0}" = 1 ] || has_gpu; }; then
        "$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/CUDA \1/p'
    else
        echo cpu
    fi
}

warn_of_cpu_operators() {
    if [ "$DEVICE" != cpu ] || ! has_gpu; then return; fi
    say "this machine has a GPU but no nvcc, so mmcv's operators are compiled for the CPU and detectors cannot train on" \
        "the GPU; install the CUDA toolkit of your torch, set CUDA_HOME to it, and run make setup again, which" \
        "compiles them anew (where the GPU is not visible: FORCE_CUDA=1 and TORCH_CUDA_ARCH_LIST, as in 8.0)" >&2
}

check_compiler() {
    local compiler
    for compiler in c++ g++ clang++; do
        command -v "$compiler" >/dev/null && break
    done
    export CXX=${CXX:-$compiler}
    command -v "${CXX%% *}" >/dev/null ||
        die "no C++ compiler was found (mmcv's operators are compiled); install one, for example the package g++ or build-essential, or set CXX."
    echo '#include <filesystem>' | $CXX -std=c++17 -x c++ -fsyntax-only - 2>/dev/null ||
        die "$CXX does not compile C++17 (mmcv's operators need it); install GCC 9 or newer, or set CXX."
    "$BASE" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
        die "the C headers of $BASE are missing (mmcv's operators are compiled); install them, for example the package python$VERSION-dev."
}

# stamp NAME [FILE...]: the file that says NAME is done; it changes with the contents of the files
stamp() { echo "$STAMPS/$1.$(cat /dev/null "${@:2}" | cksum | cut -d' ' -f1)"; }

# step NAME FILES... -- COMMAND...: runs COMMAND unless it has already succeeded with these FILES
NUMBER=0
step() {
    local name=$1 files=() mark
    shift
    NUMBER=$((NUMBER + 1))
    while [ "$1" != -- ]; do files+=("$1"); shift; done
    shift
    mark=$(stamp "$name" "${files[@]}")
    [ -e "$mark" ] && return
    say "step $NUMBER of $(grep -c '^step ' tools/setup_env.sh): $name"
    STEP=$name
    "$@"
    rm -f "$STAMPS/$name".*
    touch "$mark"
}

create_venv() {
    rm -rf $VENV
    "$BASE" -m venv $VENV
    mkdir $STAMPS
    pwd >$STAMPS/created
}

pip_install() { "$VENV/bin/python" -m pip install --disable-pip-version-check -c "$PINS" "$@"; }

# requirements EXTRA...: what pyproject.toml lists for them; "runtime" is what the package itself needs.
requirements() {
    "$VENV/bin/python" - "$@" <<'PY'
import sys
from setuptools.config.pyprojecttoml import read_configuration
project = read_configuration('pyproject.toml', expand=False)['project']
extras = dict(project['optional-dependencies'], runtime=project['dependencies'])
print(*(one.replace(' ', '') for extra in sys.argv[1:] for one in extras[extra]))
PY
}

# pip copies a distribution's files first and its INSTALLER last: without one it was interrupted, and pip would take
# what there is for the whole.
forget_interrupted() {
    local info
    for info in $VENV/lib/python*/site-packages/*.dist-info; do
        [ -e "$info/INSTALLER" ] || rm -rf "$info"
    done
}

# torch's CPU build, where pip finds it, counts as newer than the index's own, which torchvision's operators are built for.
install_torch() {
    pip_install -r $R/setup.txt torch torchvision numpy
    "$VENV/bin/python" -c 'import torchvision' 2>/dev/null && return
    say "torchvision does not load beside the build of torch that pip chose; taking the one without a local version"
    pip_install "torch===$(sed -n 's/^torch==//p' "$PINS")"
    "$VENV/bin/python" -c 'import torchvision' || die "torchvision does not load; the lines above say why."
}

# Prints the flags of everything that is compiled: Python's own, which newer setuptools leave out beside CFLAGS, and
# without debug symbols, which would take half of the time.
compiler_flags() {
    "$VENV/bin/python" -c 'import sysconfig, torch
print(sysconfig.get_config_var("CFLAGS"), "-fPIC -g0 -std=c++17", "-D_GLIBCXX_USE_CXX11_ABI=%d" % torch.compiled_with_cxx11_abi())'
}

torch_includes() {
    "$VENV/bin/python" -c 'import sysconfig, torch.utils.cpp_extension as extension
print(*("-I" + path for path in [*extension.include_paths(), sysconfig.get_path("include")]))' 2>/dev/null
}

# Three quarters of an operator's compilation go into torch's headers, so GCC takes them precompiled; it reads them as ever
# where the flags differ.
precompile_headers() {
    local header=$1/torch_types.h
    echo '#include <torch/types.h>' >"$header"
    [[ $($CXX -v 2>&1) != *"gcc version"* ]] || $CXX $CXXFLAGS $(torch_includes) -x c++-header "$header" -o "$header.gch" || true
    CXXFLAGS+=" -include $header"
}

compile_mmcv() {
    local headers
    headers=$(mktemp -d)
    [ "$DEVICE" != cpu ] || local -x CUDA_VISIBLE_DEVICES= FORCE_CUDA=0
    local CXXFLAGS="$(compiler_flags) ${CXXFLAGS:-}"
    precompile_headers "$headers"
    # The output goes through unfiltered (-v) so that the longest step shows that it moves.
    CFLAGS=$CXXFLAGS CXXFLAGS=$CXXFLAGS MMCV_WITH_OPS=1 MAX_JOBS="${MAX_JOBS:-$(nproc 2>/dev/null || echo 2)}" \
        pip_install --no-build-isolation -v "$@" "$MMCV"
    rm -rf "$headers"
}

# Whether the operators load, and are those of a GPU where DEVICE is one.
mmcv_fits() {
    "$VENV/bin/python" - "$DEVICE" <<'PY' 2>/dev/null
import ctypes, glob, sys, torch
path, = glob.glob(sys.prefix + '/lib/*/site-packages/mmcv/_ext*.so')
ctypes.CDLL(path)
sys.exit(sys.argv[1] != 'cpu' and b'cudaLaunchKernel' not in open(path, 'rb').read())
PY
}

# Compiled on every machine, because no ready wheel fits; pip keeps the wheel it builds in its cache.
install_mmcv() {
    compiled || { pip_install "$MMCV"; return; }
    compile_mmcv
    mmcv_fits && return
    say "the operators found here were compiled for another torch or device; compiling them anew for $DEVICE"
    compile_mmcv --no-cache-dir --force-reinstall --no-deps
    mmcv_fits || die "mmcv's compiled operators do not load on $DEVICE; the output above may say why."
}

# The extras of pyproject.toml, and the OpenMMLab libraries by the names that the stack has for them.
install_libraries() {
    local extras groups=(runtime tools timm export benchmarks tests lint)
    ! compiled || groups+=(notebooks)  # they need detectors
    extras=$(requirements "${groups[@]}")
    pip_install $extras $HOSTS ftfy regex
}

check_opencv() {
    "$VENV/bin/python" -c 'import cv2' ||
        die "OpenCV does not load, the line above says why; on Debian and Ubuntu the packages libgl1 and libglib2.0-0 are what it needs."
}

install_mim() { pip_install --no-deps "$MIM"; }

# In a folder of their own, out of mmpretrain's sight, which does not import beside newer transformers.
install_examples() {
    local examples
    examples=$(requirements examples)
    rm -rf $VENV/examples
    pip_install --no-deps --target $VENV/examples $examples
}

install_mmsoft() { pip_install --no-build-isolation --no-deps -e .; }

# A second setup in this folder waits for the first.
if command -v flock >/dev/null; then
    exec 9<tools/setup_env.sh
    flock -n 9 || { say "another setup is at work here; waiting for it"; flock 9; }
fi

choose_python
if [ "$(probe $VENV/bin/python | cut -d' ' -f1)" != "$VERSION" ] || [ "$(cat $STAMPS/created 2>/dev/null)" != "$PWD" ]; then
    check_venv_tools
    ! compiled || check_compiler
    say "creating $VENV with Python $VERSION; the whole setup takes 5 to 10 minutes the first time"
    create_venv
fi
DEVICE=$(compile_device)
echo "$DEVICE" >$STAMPS/device
! compiled || [ -e "$(stamp mmcv "$PINS" $STAMPS/device)" ] || check_compiler
trap '[ $? = 0 ] || say "stopped at the step ${STEP:-check}; the same command goes on from there" >&2' EXIT
forget_interrupted

step torch "$PINS" $R/setup.txt -- install_torch
step mmcv "$PINS" $STAMPS/device -- install_mmcv
step libraries "$PINS" pyproject.toml -- install_libraries
step opencv "$PINS" -- check_opencv
step mim "$PINS" -- install_mim
step examples "$PINS" pyproject.toml -- install_examples
step mmsoft setup.py pyproject.toml mmsoft/__init__.py "$PINS" -- install_mmsoft
warn_of_cpu_operators
