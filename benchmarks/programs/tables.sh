#!/usr/bin/env bash
# Measures cases of the tables in docs/kernel.md again: OUT=FOLDER benchmarks/programs/tables.sh [PART ...]
#   main     problem=main's five shapes in bf16 and f16, with all baselines             130 s on 2x H200
#   llama3   problem=llama3 but for its largest case                                    150 s
#   largest  m_shard=4096 k=8192 n_shard=28672, the case of llama3 that takes longest    90 s
#   changed  shapes whose configs have changed since they were measured, both dtypes     60 s
#   gains    the shapes of cmkernel/tuned.jsonl by the table and by the heuristic        220 s
# Each part is a job of its own with a limit in time; its run directory and output come out as $OUT/tables.tar.gz.
set -u
parts=("$@")
((${#parts[@]})) || parts=(main llama3 largest changed)
out=${OUT:-/tmp/tables_out} runs=$(mktemp -d /tmp/tables.XXXXXX)
mkdir -p "$out"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
start=$SECONDS

layer() { echo "{name: $1, m_shard: [$2], k: $3, n: $(($4 * 2))}"; }

# job NAME LIMIT_S OVERRIDES ...
job() {
  local name=$1 limit_s=$2
  shift 2
  mkdir -p "$runs/$name"
  timeout -k 40 "$limit_s" python3 -m jobs.bench cluster=local cluster.num_ranks=2 wandb=disabled results.report=false \
    timing.iterations=24 timing.chains=12 timing.profiled_calls=16 "$@" run_dir="$runs/$name/run" >"$runs/$name/output.txt" 2>&1
  echo "$name rc=$? after $((SECONDS - start)) s"
  [[ -d $runs/$name/run ]] && mv "$runs/$name/output.txt" "$runs/$name/run/"
  grep "^RESULT" "$runs/$name/run/output.txt" | cut -c1-300
}

all="[torch_fused,jax_ring,mosaic_gpu,xla,xla_cublas,local,local_cublas]" few="[mosaic_gpu,xla,xla_cublas,local,local_cublas]"
both="problem.dtype=[bf16,f16]"
for part in "${parts[@]}"; do
  case $part in
    main) job main 240 kernel=auto problem=llama3 problem.name=main "$both" "timing.baselines=$all" \
      "problem.layers=[$(layer small 1024 4096 4096), $(layer few_rows 256 8192 3584), $(layer square 4096 4096 4096), $(layer wide '2048, 4096' 8192 7168)]" ;;
    llama3) job llama3 240 kernel=auto problem=llama3 "timing.baselines=$few" \
      "problem.layers=[$(layer 8b_qkv '256, 1024, 4096' 4096 3072), $(layer 8b_gate_up '1024, 4096' 4096 14336), $(layer 70b_qkv '256, 1024, 4096' 8192 5120), $(layer 70b_gate_up 1024 8192 28672)]" ;;
    largest) job largest 150 kernel=auto problem=llama3 "timing.baselines=$few" "problem.layers=[$(layer 70b_gate_up 4096 8192 28672)]" ;;
    changed) job changed 120 kernel=auto problem=llama3 "$both" "timing.baselines=$few" \
      "problem.layers=[$(layer small 1024 4096 4096), $(layer 8b_qkv '256, 1024' 4096 3072), $(layer few_rows 256 8192 3584)]" ;;
    gains)
      layers="[$(layer article 1024 4096 4096), $(layer 8b_qkv '256, 1024, 4096' 4096 3072), $(layer 8b_gate_up '1024, 4096' 4096 14336), $(layer 70b_qkv '256, 1024, 4096' 8192 5120), $(layer 70b_gate_up '1024, 4096' 8192 28672)]"
      for table in default:null heuristic:/dev/null; do
        job "by_${table%%:*}" 200 kernel=mosaic_gpu "kernel.table=${table#*:}" problem=llama3 problem.dtype=bf16 "problem.layers=$layers" "timing.baselines=[]"
      done
      python3 -m jobs.compare --base "$runs/by_heuristic/run" --new "$runs/by_default/run" ;;
    *) echo "tables.sh: no part $part" >&2 && exit 2 ;;
  esac
done
tar czf "$out/tables.tar.gz" -C "$runs" .
ls -l "$out"
