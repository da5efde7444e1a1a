#!/usr/bin/env bash
# Runs a job on a Ray cluster: scripts/submit.sh --address http://HEAD:8265 -- problem=llama3 (--help lists the options).
# Its exit code is the job's.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  cat <<'TEXT'
Usage: scripts/submit.sh [options] [--] [overrides of the config ...]

Uploads this checkout to a Ray cluster, runs `python -m jobs.bench` on its head with the overrides, follows the output.

  --address URL         the cluster's job server, http://HEAD:8265 (http:// may be left out); without it
                        RAY_API_SERVER_ADDRESS, RAY_ADDRESS, or the Ray on this host
  --install             install requirements.lock on the nodes for this job; without it they must have those versions
  --install=cuda13      the same, and requirements-cuda13.lock
  --no-wait             return once the job is accepted
  --submission-id ID    the job's name in the cluster, also that of its run directory (default: made from the time)
  --job MODULE          jobs.bench (default) or another module of jobs/
  --help                this text

Exit code: the job's (0 ok, 1 a check failed, 2 usage, 3 infrastructure); 143 where it was stopped by `ray job stop`.
A cluster with token authentication needs RAY_AUTH_MODE=token, and the token in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or
~/.ray/auth_token. W&B's key must be on the head node, in ~/.netrc or in the file that wandb.api_key_file names: whatever
is sent along with a job is readable by everyone who can list the cluster's jobs.
TEXT
}

fail() {
  printf 'submit.sh: %s\n' "$*" >&2
  exit 2
}

locks=() no_wait=() job=jobs.bench
unset address id
while (($#)); do
  case $1 in
    --address | --submission-id | --job) (($# > 1)) && [[ $2 != --* ]] || fail "$1 needs a value" ;;&
    --address) address=$2 && shift 2 ;;
    --address=*) address=${1#*=} && shift ;;
    --submission-id) id=$2 && shift 2 ;;
    --submission-id=*) id=${1#*=} && shift ;;
    --job) job=$2 && shift 2 ;;
    --job=*) job=${1#*=} && shift ;;
    --install) locks=(requirements.lock) && shift ;;
    --install=cuda13) locks=(requirements.lock requirements-cuda13.lock) && shift ;;
    --no-wait) no_wait=(--no-wait) && shift ;;
    -h | --help) usage && exit 0 ;;
    --) shift && break ;;
    -*) fail "unknown option $1 (options of the job go behind --; --help lists the others)" ;;
    *) break ;;
  esac
done
[[ $job == jobs.* ]] || fail "--job=$job must be a module of jobs/, such as jobs.bench"
[[ ${address-unset} ]] || fail "--address needs a value"
id=${id-${job##*.}-$(date +%Y%m%d-%H%M%S)-$RANDOM}

ray=ray python=python3
if [[ -x $root/.venv/bin/ray ]]; then ray=$root/.venv/bin/ray python=$root/.venv/bin/python; fi
command -v "$ray" >/dev/null || fail "no ray in $root/.venv/bin or on the PATH: scripts/bench.sh makes .venv on first use"

# The leading slash anchors a pattern; without it, wandb would match conf/wandb too. Hidden names need a letter after the
# dot, as Ray calls the upload itself ".". Ray also honours .gitignore.
excludes='["/.[a-z]*", "/benchmarks", "/build", "/dist", "/multirun", "/outputs", "/runs",
  "/tests", "/wandb", "/*.egg-info", "__pycache__"]'
server=$("$python" -P "$root/scripts/submit_check.py" "$root" "$excludes" "$id" "${address-}")
# Ray's client prefers these variables to its own option --address.
if [[ $server ]]; then export RAY_API_SERVER_ADDRESS=$server && unset RAY_ADDRESS; fi
pip=''
if ((${#locks[@]})); then
  # By reference: Ray passes this on in an environment variable, and a lock with its hashes is too long for one.
  # The hash of the locks is a comment to pip. It makes Ray build a new environment when the locks change.
  pip="\"# $(cd "$root" && cat "${locks[@]}" | sha256sum | cut -d' ' -f1)\""
  for lock in "${locks[@]}"; do pip+=", \"-r \${RAY_RUNTIME_ENV_CREATE_WORKING_DIR}/$lock\""; done
fi
# By default Ray kills a stopped job after 3 s, which is too short to end the gang and W&B.
runtime_env="{\"excludes\": $excludes, \"env_vars\": {\"RAY_JOB_STOP_WAIT_TIME_S\": \"60\"}${pip:+, \"pip\": [$pip]}}"
# Tells this job from one of the same name that may already exist.
nonce=$RANDOM-$RANDOM-$RANDOM
# The upload has no .git, so environment.json takes the commit from here.
commit=$(git -C "$root" describe --always --dirty --abbrev=40 --match= 2>/dev/null) || commit=''

trap 'printf "submit.sh: %s keeps running; ray job stop %s ends it\n" "$id" "$id" >&2; exit 130' INT
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
deadline=$((SECONDS + 30)) warned=''
while true; do
  submitted=0
  exec 5> >(exec 5>&-; tee "$errors" | sed -u '/^Traceback/,$d' >&2) # the last line of a traceback is enough
  reader=$!
  "$ray" job submit "${no_wait[@]}" --submission-id "$id" --working-dir "$root" \
    --metadata-json "{\"submit\": \"$nonce\", \"git_sha\": \"$commit\"}" --runtime-env-json "$runtime_env" \
    -- python -m "$job" "$@" 2>&5 || submitted=$?
  exec 5>&-
  wait "$reader" || true
  # A head that has just started takes jobs before it has an agent that runs them.
  if ((submitted == 0)) || ! grep -q "No available agent" "$errors"; then break; fi
  if [[ ! $warned ]]; then
    echo "submit.sh: no node has an agent to run the job; trying for half a minute, in case the head has just started." \
      "Does another process there hold the agents' port? Start Ray with --dashboard-agent-listen-port=PORT (52365 is" \
      "the default)" >&2
    warned=yes
  fi
  if ((SECONDS >= deadline)); then
    echo "submit.sh: still no agent: the job isn't submitted" >&2
    exit 3
  fi
  sleep 2
done
if grep -q ^Traceback "$errors"; then echo "submit.sh: $(tail -n 1 "$errors")" >&2; fi
if ((${#no_wait[@]})); then exit "$submitted"; fi

# `ray job submit` exits with 0 or 1, whatever the job's exit code.
"$python" - "$id" "$nonce" <<'PYTHON'
import re
import sys
import time

from ray.job_submission import JobStatus, JobSubmissionClient

INFRASTRUCTURE, STOPPED = 3, 143
submission_id, nonce = sys.argv[1:]
try:
    client = JobSubmissionClient()
    # The output can end before the job does: a proxy may cut the stream, or the status may lag behind.
    deadline = time.monotonic() + 10
    while not (info := client.get_job_info(submission_id)).status.is_terminal() and time.monotonic() < deadline:
        time.sleep(0.2)
except Exception as error:
    sys.exit(print(f"submit.sh: {submission_id}: {error}", file=sys.stderr) or INFRASTRUCTURE)
if (info.metadata or {}).get("submit") != nonce:  # another job's: `ray job submit` has printed why
    sys.exit(INFRASTRUCTURE)
if not info.status.is_terminal():
    print(f"submit.sh: {submission_id} still runs: ray job logs --follow {submission_id}", file=sys.stderr)
    sys.exit(INFRASTRUCTURE)
if info.status is JobStatus.STOPPED:
    sys.exit(STOPPED)
code = info.driver_exit_code
logs = client.get_job_logs(submission_id) if code else ""
if missing := re.findall(r"^ModuleNotFoundError: No module named '?([^'\n]+)", logs, re.MULTILINE):
    print(
        f"submit.sh: the cluster's Python has no module {missing[-1]}: submit with --install (--install=cuda13 on GPU "
        "nodes), or start Ray there with the locked environment activated",
        file=sys.stderr,
    )
    sys.exit(INFRASTRUCTURE)
if code == 1 and "RESULT {" not in logs:
    # Python exits with 1 too when it can't start the job; the job's own 1 means a failed check.
    print(
        "submit.sh: the job didn't start, see above. It runs the `python` that is first on the PATH of the shell that "
        "started Ray: start Ray with the locked environment activated, or submit with --install",
        file=sys.stderr,
    )
    sys.exit(INFRASTRUCTURE)
if code is None:  # it never began
    sys.exit(0 if info.status is JobStatus.SUCCEEDED else INFRASTRUCTURE)
sys.exit(128 - code if code < 0 else code)
PYTHON
