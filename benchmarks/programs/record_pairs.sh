#!/usr/bin/env bash
# Records runs of one config, one after the other, for tests/jobs/data/pairs_2xH200 (tests/jobs/comparison/test_pairs.py).
#   OUT=FOLDER benchmarks/programs/record_pairs.sh [RUNS] [FIRST]      FIRST: number of the first run in the data
# The result is $OUT/pairs.tar.gz, to be unpacked in tests/jobs/data.
#
# jobs.compare asks whether another RUN would have come out differently, so each run here has processes of its own: a new
# gang, a new CUDA context and arena, NCCL's set-up, compilation. What is saved is only what can't reach a time: one Ray
# and one driver for all runs (a multirun without cluster.reuse_gang; checked below by the ranks' pids), no W&B, no report,
# one checking call, few samples, no baselines. All of it is one machine within minutes: another one scatters more.
# A run took 22 s on 2x H200. LIMIT_S ends the recording earlier; whole runs stay.
set -u
runs=${1:-20} first=${2:-0} cases=${CASES:-1024} kind=${KIND:-gpu}
out=${OUT:-/tmp/compare_pairs_out}
dir=$(mktemp -d /tmp/pairs.XXXXXX)
mkdir -p "$out"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$dir/token
python3 -c "import secrets; print(secrets.token_hex(32), end='')" > "$dir/token"
resources=() problem=(kernel=mosaic_gpu problem=article problem.dtype=bf16 "timing.baselines=[]")
if [[ $kind == cpu ]]; then # rehearses this script
  resources=(--num-cpus=4 --num-gpus=0)
  problem=(kernel=ppermute problem=tiny "timing.baselines=[]")
  cases=${CASES:-64}
fi
setsid python3 -m ray.scripts.scripts start --head --block --disable-usage-stats --port=6399 --include-dashboard=false "${resources[@]}" > "$dir/ray.log" 2>&1 &
ray=$!
for _ in $(seq 60); do grep -q "ray status" "$dir/ray.log" && break; sleep 0.5; done
# A name for W&B, which is off: so many points of the same config.
names=$(seq -s, "$first" $((first + runs - 1)))
start=$SECONDS
RAY_ADDRESS=127.0.0.1:6399 timeout -k 30 "${LIMIT_S:-560}" python3 -m jobs.bench -m "${problem[@]}" "problem.m_shard=[${cases// /,}]" \
  check.calls=1 timing.warmup=2 timing.bursts=4 timing.iterations=12 timing.chains=8 timing.profiled_calls=8 \
  cluster.num_ranks=2 cluster.reuse_gang=false wandb=disabled results.report=false "wandb.name=$names" run_dir="$dir/runs" > "$out/pairs.log" 2>&1
echo "rc=$? $((SECONDS - start)) s"
grep -c '^RESULT {"status": "ok"' "$out/pairs.log"
# A run that was cut short has too few rows.
mapfile -t complete < <(python3 - "$dir/runs" "$(wc -w <<< "$cases")" <<'P'
import json, pathlib, sys
runs = sorted((p for p in pathlib.Path(sys.argv[1]).iterdir() if (p / "results.jsonl").exists()), key=lambda p: int(p.name))
whole = [p for p in runs if (p / "results.jsonl").read_bytes().count(b"\n") == 1 * int(sys.argv[2])]
pids = [m["pid"] for p in whole for m in json.loads((p / "environment.json").read_text())["members"]]
assert len(set(pids)) == len(pids), "runs share processes: a gang was used twice"
print(*whole[: len(whole) // 2 * 2], sep="\n")
P
)
echo "${#complete[@]} whole runs"
python3 benchmarks/programs/strip_runs.py --to "$dir/pairs_2xH200" --first "$first" "${complete[@]}"
tar czf "$out/pairs.tar.gz" -C "$dir" pairs_2xH200
ls -l "$out"
python3 -m jobs.compare --base "$dir"/pairs_2xH200/?[02468] --new "$dir"/pairs_2xH200/?[13579]
kill "$ray"
