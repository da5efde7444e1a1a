#!/usr/bin/env bash
# Linters, type checker, import rules, then tests (--help lists the options). Makes .venv on first use.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh

usage() {
  cat <<'TEXT'
Usage: scripts/test.sh [--all] [--install-system-packages] [arguments of pytest]

Runs ruff, mypy, lint-imports and shellcheck, then pytest: without arguments the fast tests that need no GPU.

  scripts/test.sh --all           all tests, the slow ones too; those of GPUs are skipped where there are none
  scripts/test.sh -m gpu          the tests that need NVIDIA GPUs; GPU_CALLS=10000 makes them long (default 100 calls)
  scripts/test.sh -k ring         any arguments of pytest; -m replaces the default selection

  --install-system-packages       install iproute2 and chromium by apt-get, as root, where they are missing: some slow
                                  tests need them, and are skipped without. CI does so (.ci/run)
TEXT
}

# missing_packages: `ip` makes the network namespaces that stand for hosts, `chromium` opens the report.
missing_packages() {
  command -v ip >/dev/null || echo iproute2
  command -v chromium >/dev/null || echo chromium
}

install_system_packages() {
  local package apt_get=(env DEBIAN_FRONTEND=noninteractive apt-get -qq)
  if [[ $(id -u) != 0 ]]; then apt_get=(sudo -n "${apt_get[@]}"); fi
  say "Installing system packages: $*"
  "${apt_get[@]}" update || true
  # One by one: where one can't be had, the tests that need another one still run.
  for package in "$@"; do
    "${apt_get[@]}" install --yes --no-install-recommends "$package" >/dev/null || true
  done
}

failed=()
check() {
  printf '== %s\n' "$*"
  "$@" || failed+=("$*")
}

all=false install=false
while (($#)); do
  case $1 in
    --all) all=true && shift ;;
    --install-system-packages) install=true && shift ;;
    -h | --help) usage && exit 0 ;;
    *) break ;;
  esac
done

mapfile -t missing < <(missing_packages)
if $install && ((${#missing[@]})); then
  install_system_packages "${missing[@]}"
  mapfile -t missing < <(missing_packages)
fi
if $all && ((${#missing[@]})); then
  say "WARNING: missing system packages: ${missing[*]}. Tests that need them are skipped;" \
    "apt-get install them, or let --install-system-packages do it"
fi

# An empty expression selects all; a later -m among the arguments wins.
given=$#
if $all; then set -- -m "" "$@"; fi
make_environment requirements.lock requirements-dev.lock

export PATH=$PWD/.venv/bin:$PATH
check ruff check
check ruff format --check
check mypy
check lint-imports --no-logo
check shellcheck --external-sources scripts/*.sh benchmarks/programs/*.sh .ci/run
if ((${#failed[@]})); then
  printf 'FAILED: %s\n' "${failed[@]}"
  echo "pytest not run"
  exit 1
fi
if ((given)); then
  printf '== pytest %s\n' "${*@Q}"
  exec python -m pytest "$@"
fi

# Several pytest processes side by side: one waits for Ray half of the time, the others compute. Among all tests those
# with Ray take longest, and more than one computing process would slow them down on two cores. The computing ones give
# way to the others.
if $all; then echo "== pytest: all tests"; else echo "== pytest: the fast tests that need no GPU (--help)"; fi
logs=$(mktemp -d)
code=0
pids=()
# in_background LOG PATH...: start pytest on these paths.
in_background() {
  local log=$logs/$1
  shift
  python -m pytest "$@" &>"$log" &
  pids+=($!)
}
in_background integration tests/integration "$@"
rest=(--ignore tests/integration)
if ! $all; then
  in_background jobs tests/jobs tests/cmkernel/test_mosaic*.py "$@"
  rest+=(--ignore tests/jobs --ignore-glob '*/test_mosaic*')
fi
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$logs"' EXIT
nice -n 5 python -m pytest "${rest[@]}" "$@" || code=$?
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
for log in "$logs"/*; do
  echo "== pytest: ${log##*/}"
  cat "$log"
done
exit "$code"
