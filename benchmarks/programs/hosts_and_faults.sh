#!/usr/bin/env bash
# Several raylets, islands, faults in mid-kernel and a soak on a machine with 2 GPUs. From the repository's root:
#   OUT=FOLDER bash benchmarks/programs/hosts_and_faults.sh [a] [b] [c] [d]      (all of them without arguments; logs in $OUT)
#   KIND=cpu OUT=... bash benchmarks/programs/hosts_and_faults.sh                rehearses it on CPU ranks
# a  python3 -m jobs.doctor
# b  two raylets of one GPU each: mosaic_gpu across both, then per_island on the same
# c  local Ray: a rank SIGKILLed in mid-kernel, then a rank stuck while its peer's GPU spins; both restart
# d  soak of 20 s
# Each step has a limit of its own. Typically 4 minutes in all; a, b and c, d are halves.
set -u
kind=${KIND:-gpu} out=${OUT:?}
steps=${*:-a b c d}
mkdir -p "$out"
dir=$(mktemp -d /tmp/isl.XXXXXX)
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
bench=(python3 -m jobs.bench wandb=disabled results.report=false timing=quick check.calls=1)
if [[ $kind == gpu ]]; then
  problem=(kernel=mosaic_gpu problem=article problem.dtype=bf16) sizes="512,1024,2048" one=1024 iterations=12000
  raylet=(--num-gpus=1 --num-cpus=4)
else
  problem=(kernel=ppermute problem=tiny) sizes="32,40,48" one=64 iterations=4000
  raylet=(--num-gpus=0 --num-cpus=1)
fi

memory() { # GPU memory in use, into the log $1
  [[ $kind == gpu ]] && nvidia-smi --query-gpu=index,memory.used --format=csv,noheader >> "$1" 2>&1 || echo "no nvidia-smi" >> "$1"
}

began=$SECONDS
verdict() { # name, exit code as it was, as it should be
  local word=BAD
  [[ $2 == "$3" ]] && word=ok
  echo "$word $1: exit $2, want $3, $((SECONDS - began)) s so far" | tee -a "$out/summary.txt"
}

keep() { # a run directory's files, under a name
  for file in results.jsonl environment.json bench.log doctor.json soak.jsonl; do
    [[ -e $dir/$1/$file ]] && cp "$dir/$1/$file" "$out/$1.$file"
  done
  cp "$dir/$1"/stacks-* "$out/" 2>/dev/null
}

if [[ $steps == *a* ]]; then
  timeout -k 10 70 python3 -m jobs.doctor cluster=local run_dir="$dir/a" > "$out/a.log" 2>&1
  verdict "a doctor" $? 0
  keep a
fi

if [[ $steps == *b* ]]; then
  export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$dir/token
  python3 -c "import secrets; print(secrets.token_hex(32), end='')" > "$dir/token"
  ip=$(hostname -I 2>/dev/null | awk '{print $1}')
  ip=${ip:-127.0.0.1}
  start() { # number, where
    CUDA_VISIBLE_DEVICES=$1 setsid python3 -m ray.scripts.scripts start --block --disable-usage-stats "${@:2}" "${raylet[@]}" \
      --node-ip-address="$ip" --temp-dir="$dir/r$1" --object-store-memory=100000000 \
      --dashboard-agent-listen-port=$((52401 + $1)) --min-worker-port=0 --max-worker-port=0 \
      > "$out/b_raylet$1.log" 2>&1 &
    raylets+=($!)
  }
  raylets=()
  start 0 --head --port=6399 --include-dashboard=false
  for _ in $(seq 60); do (exec 3<> "/dev/tcp/$ip/6399") 2>/dev/null && break; sleep 0.5; done
  start 1 --address="$ip:6399"
  RAY_ADDRESS=$ip:6399 timeout -k 10 60 python3 - > "$out/b_nodes.log" 2>&1 <<'P'
import ray, time
ray.init(log_to_driver=False, logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < 2:
    time.sleep(0.2)
print([(node["NodeManagerAddress"], node["NodeManagerHostname"], node["Resources"]) for node in ray.nodes()])
P
  verdict "b two raylets" $? 0
  export RAY_ADDRESS=$ip:6399
  timeout -k 10 80 "${bench[@]}" "${problem[@]}" "problem.m_shard=$one" cluster.num_ranks=2 "timing.baselines=[xla,local]" \
    run_dir="$dir/b1" > "$out/b1.log" 2>&1
  verdict "b one world over both raylets" $? 0
  keep b1
  timeout -k 10 80 "${bench[@]}" "${problem[@]}" "problem.m_shard=$one" cluster.world=per_island cluster.num_ranks=1 \
    "timing.baselines=[local]" run_dir="$dir/b2" > "$out/b2.log" 2>&1
  verdict "b per_island, two islands of one rank" $? 0
  keep b2
  grep -h -E "^# (Islands|Ranks)|^  " "$out/b2.log" | cut -c1-240
  unset RAY_ADDRESS
  kill "${raylets[@]}" 2>/dev/null
  for _ in $(seq 20); do kill -0 "${raylets[@]}" 2>/dev/null || break; sleep 0.5; done
  for pid in "${raylets[@]}"; do kill -KILL -- "-$pid" 2>/dev/null; done
  wait
fi

if [[ $steps == *c* ]]; then
  memory "$out/c_memory_before.log"
  timeout -k 10 150 python3 -u - "$dir/c" > "$out/c_faults.log" 2>&1 <<'P' &
"""Does the damage, once environment.json and bench.log of the job say that it is time."""
import json, os, pathlib, signal, subprocess, sys, time

run_dir = pathlib.Path(sys.argv[1])


def await_burst(number, attempt):
    """Members of that attempt, once the case of this number is in its second burst."""
    while True:
        try:
            lines = (run_dir / "bench.log").read_text().splitlines()
            about = json.loads((run_dir / "environment.json").read_text())
        except (OSError, ValueError):
            lines, about = [], {}
        inputs = [i for i, line in enumerate(lines) if line.endswith(": inputs")]
        # Of this attempt alone: attempts begin anew with the first case that isn't finished.
        if about.get("attempt") == attempt and about.get("members") and len(inputs) >= number:
            if any(": burst 2/" in line for line in lines[inputs[number - 1] :]):
                return about["members"]
        time.sleep(0.05)


def working_thread(pid):
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return next((t.name for t in tasks if (t / "comm").read_text() == "ray::Rank.call\n"), None)


victim = await_burst(2, 1)[1]["pid"]  # the second case
time.sleep(0.3)
os.kill(victim, signal.SIGKILL)
print(f"{time.time():.2f} SIGKILL of rank 1, pid {victim}", flush=True)
# Then the second case again, and the third one: the fourth that begins.
peer, rank = (member["pid"] for member in await_burst(4, 2))
os.kill(peer, signal.SIGSTOP)
time.sleep(0.5)  # meanwhile the other one waits for it inside XLA
thread = working_thread(rank)
stick = subprocess.Popen([sys.executable, "tests/integration/stick.py", str(thread)], stdout=subprocess.PIPE, text=True)
if stick.stdout.readline().startswith("stopped"):
    print(f"{time.time():.2f} stuck: thread {thread} of rank 1, pid {rank}", flush=True)
else:
    os.kill(rank, signal.SIGSTOP)
    print(f"{time.time():.2f} no ptrace here: SIGSTOP of all of rank 1, pid {rank}", flush=True)
os.kill(peer, signal.SIGCONT)
stick.wait(60)
print(f"{time.time():.2f} that process is gone", flush=True)
P
  faults=$!
  timeout -k 10 150 "${bench[@]}" "${problem[@]}" "problem.m_shard=[$sizes]" cluster=local cluster.num_ranks=2 "timing.baselines=[]" \
    timing.iterations=$iterations timing.bursts=3 cluster.stall_timeout_s=15 cluster.heartbeat_timeout_s=30 \
    run_dir="$dir/c" > "$out/c.log" 2>&1
  verdict "c killed and stuck rank, two restarts" $? 0
  kill "$faults" 2>/dev/null
  keep c
  grep -h -E "^# (Restart|Attempt)|^RESULT|^  " "$out/c.log" | cut -c1-400
  cat "$out/c_faults.log"
  memory "$out/c_memory_after.log"
  cat "$out/c_memory_before.log" "$out/c_memory_after.log"
fi

if [[ $steps == *d* ]]; then
  timeout -k 10 120 "${bench[@]}" "${problem[@]}" "problem.m_shard=$one" cluster=local cluster.num_ranks=2 "timing.baselines=[]" \
    timing.soak_minutes=0.34 run_dir="$dir/d" > "$out/d.log" 2>&1
  verdict "d soak" $? 0
  keep d
  grep -h -i -E "soak|^RESULT" "$out/d.log" | cut -c1-300
fi
rm -rf "$dir"
cat "$out/summary.txt"
