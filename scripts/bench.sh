#!/usr/bin/env bash
# Checks and times the ring all-gather matmul: scripts/bench.sh problem=llama3 timing.iterations=20
# Makes .venv on first use; all arguments go to python -m jobs.bench (--help lists the options).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh

make_environment requirements.lock
exec .venv/bin/python -m jobs.bench "$@"
