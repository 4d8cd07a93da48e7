#!/usr/bin/env bash
# Trains on a Slurm cluster.
#   tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [arguments of tools/train.py]
#   GPUS, GPUS_PER_NODE, CPUS_PER_TASK (8, 8, 5) describe the job; SRUN_ARGS goes to srun; PYTHON is the interpreter
set -euo pipefail
if [ $# -lt 4 ]; then
    echo "usage: $0 PARTITION JOB_NAME CONFIG WORK_DIR [arguments of tools/train.py]" >&2
    exit 2
fi

# SRUN_ARGS holds several words.
# shellcheck disable=SC2086
exec srun -p "$1" --job-name="$2" --ntasks="${GPUS:-8}" --ntasks-per-node="${GPUS_PER_NODE:-8}" \
    --gres=gpu:"${GPUS_PER_NODE:-8}" --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
    "${PYTHON:-python}" -u "$(dirname "$0")/train.py" "$3" --work-dir="$4" --launcher=slurm "${@:5}"
