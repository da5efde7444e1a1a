#!/usr/bin/env bash
# Linters, type checker, import rules and tests: scripts/test.sh [--all] [arguments of pytest]
# Makes .venv on first use. --all adds the tests marked slow, and installs the system packages that they need.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/environment.sh
source scripts/environment.sh

# `ip` makes the network namespaces that stand for hosts, `chromium` opens the report.
install_system_packages() {
  local missing=()
  command -v ip >/dev/null || missing+=(iproute2)
  command -v chromium >/dev/null || missing+=(chromium)
  if ((${#missing[@]} == 0)); then return; fi
  if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    say "Installing ${missing[*]} ..."
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update || true
    # One by one: where one can't be had, the tests that need another one still run.
    local package
    for package in "${missing[@]}"; do apt-get -qq install --yes --no-install-recommends "$package" >/dev/null || true; done
  fi
  command -v ip >/dev/null ||
    say "WARNING: no ip command, and it can't be installed here (apt-get install iproute2): tests of several hosts can't run"
  command -v chromium >/dev/null ||
    say "WARNING: no chromium, and it can't be installed here (apt-get install chromium): the report isn't opened"
}

failed=()
check() {
  printf '== %s\n' "$*"
  "$@" || failed+=("$*")
}

selection=()
if [[ ${1:-} == --all ]]; then
  shift
  selection=(-m "")
  install_system_packages
fi
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
printf '== pytest %s\n' "${selection[*]@Q} $*"
exec python -m pytest "${selection[@]}" "$@"
