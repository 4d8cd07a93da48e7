#!/usr/bin/env bash
# Trains in several processes on one machine or more, one for each GPU.
#   tools/dist_train.sh CONFIG PROCESSES [arguments of tools/train.py]
#   NNODES, NODE_RANK, MASTER_ADDR, PORT describe the machines; PYTHON is the interpreter
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: $0 CONFIG PROCESSES [arguments of tools/train.py]" >&2
    exit 2
fi

exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$2" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
    "$(dirname "$0")/train.py" "$1" --launcher pytorch "${@:3}"
