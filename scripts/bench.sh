#!/usr/bin/env bash
# Checks and times the ring all-gather matmul: scripts/bench.sh problem=llama3 timing.iterations=20
# Makes .venv on first use; all arguments go to python -m jobs.bench (--help lists the options).
set -euo pipefail
# shellcheck source=scripts/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

make_environment requirements.lock
# In the caller's folder, which relative paths are of; -P keeps what lies there off the import path.
exec "$venv/bin/python" -P -m jobs.bench "$@"
