#!/usr/bin/env bash
# Evaluates in several processes on one machine or more, one for each GPU.
#   tools/dist_test.sh CONFIG CHECKPOINT PROCESSES [arguments of tools/test.py]
#   NNODES, NODE_RANK, MASTER_ADDR, PORT describe the machines; PYTHON is the interpreter
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: $0 CONFIG CHECKPOINT PROCESSES [arguments of tools/test.py]" >&2
    exit 2
fi

exec "${PYTHON:-python}" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$3" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
    "$(dirname "$0")/test.py" "$1" "$2" --launcher pytorch "${@:4}"
