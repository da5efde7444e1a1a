#!/usr/bin/env bash
#SBATCH --job-name=cmkernel
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=00:30:00
#SBATCH --signal=B:TERM@120
# A job on a Slurm cluster: sbatch [--nodes=N] scripts/slurm.sh [options of submit.sh] -- problem=llama3
#
# Starts one Ray node on each node of the allocation, then calls scripts/submit.sh with the arguments; its exit code is
# the job's. Call it from the checkout, on a file system that all nodes share. More in docs/clusters.md.
#   RAY_HEAD_IP   address at which the other nodes reach the first one (default: the one of its outward route)
set -euo pipefail

fail() {
  printf 'slurm.sh: %s\n' "$*" >&2
  exit 3
}

# Slurm runs a copy of this file from elsewhere.
cd "${SLURM_SUBMIT_DIR:?is set by Slurm: call this file through sbatch}"
[[ -x scripts/submit.sh ]] || fail "$PWD is no checkout: call sbatch from there"
if [[ -x .venv/bin/ray ]]; then PATH=$PWD/.venv/bin:$PATH; fi
command -v ray >/dev/null || fail "no ray in $PWD/.venv/bin or on the PATH: run scripts/bench.sh there once"

# Ports by job, as several jobs may share a node; all below the range that the kernel hands out.
base=$((20000 + SLURM_JOB_ID % 1000 * 10))
gcs=$base dashboard=$((base + 1)) client=$((base + 2)) head_agent=$((base + 3)) agent=$((base + 4))
ip=${RAY_HEAD_IP:-$(python3 -c 'import ray; print(ray.util.get_node_ip_address())')}
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${hosts%%$'\n'*}

# A token for this cluster alone. The other nodes can read it, other users can't.
secrets=$(mktemp -d "$HOME/.cmkernel-slurm-$SLURM_JOB_ID-XXXXXX")
python3 -c 'import secrets; print(secrets.token_hex(32), end="")' >"$secrets/token"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$secrets/token
# Ray's default for workers is 15, which lets any other program on the node delay a rank.
export RAY_worker_niceness=0

steps=()
# shellcheck disable=SC2329 # the trap calls it
clean_up() {
  trap - EXIT
  # SIGTERM to srun ends its step on all nodes.
  for step in "${steps[@]}"; do kill -TERM "$step" 2>/dev/null || true; done
  for step in "${steps[@]}"; do wait "$step" 2>/dev/null || true; done
  rm -rf "$secrets"
}
trap clean_up EXIT

# start_ray SRUN-OPTIONS -- RAY-OPTIONS: start Ray in the background, in a step that has all of the nodes' resources.
start_ray() {
  local placed=()
  while [[ $1 != -- ]]; do placed+=("$1") && shift; done
  shift
  srun --ntasks-per-node=1 --cpus-per-task="${SLURM_CPUS_ON_NODE:-1}" --cpu-bind=none --mem=0 "${placed[@]}" \
    ray start --block --disable-usage-stats --temp-dir="/tmp/ray-$SLURM_JOB_ID" "$@" >&2 &
  steps+=($!)
}

start_ray --nodes=1 --ntasks=1 --nodelist="$head" -- --head --node-ip-address="$ip" --port="$gcs" \
  --dashboard-host="$ip" --dashboard-port="$dashboard" --ray-client-server-port="$client" \
  --dashboard-agent-listen-port="$head_agent"

# await_nodes COUNT: wait until that many nodes have joined.
await_nodes() {
  timeout 180 python3 - "$ip" "$gcs" "$dashboard" "$1" <<'PYTHON'
import socket
import sys
import time

ip, gcs, dashboard, count = sys.argv[1], *map(int, sys.argv[2:])
for port in (gcs, dashboard):
    while True:
        try:
            socket.create_connection((ip, port), timeout=5).close()
            break
        except OSError:
            time.sleep(0.5)
import ray

ray.init(address=f"{ip}:{gcs}", log_to_driver=False, logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < count:
    time.sleep(0.5)
PYTHON
}

await_nodes 1 || fail "Ray's head didn't start on $head ($ip) within 180 s"
if ((SLURM_JOB_NUM_NODES > 1)); then
  others=$((SLURM_JOB_NUM_NODES - 1))
  start_ray --nodes="$others" --ntasks="$others" --exclude="$head" -- --address="$ip:$gcs" \
    --dashboard-agent-listen-port="$agent"
  await_nodes "$SLURM_JOB_NUM_NODES" || fail "not all $SLURM_JOB_NUM_NODES nodes joined $ip:$gcs within 180 s"
fi

id=slurm-$SLURM_JOB_ID url=http://$ip:$dashboard
scripts/submit.sh --address "$url" --submission-id "$id" "$@" &
job=$!
# On Slurm's time limit or scancel, stop the job so that it keeps its rows. A trap runs only when `wait` returns.
trap 'ray job stop --address "$url" "$id" >&2 || true' TERM INT
code=0
wait "$job" || code=$?
# The job still runs: a trap cut the first wait short.
if kill -0 "$job" 2>/dev/null; then code=0 && { wait "$job" || code=$?; }; fi
exit "$code"
