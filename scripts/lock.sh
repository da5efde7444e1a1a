#!/usr/bin/env bash
# Writes the locks from pyproject.toml: scripts/lock.sh [--upgrade]. Needs uv. Pins stay unless pyproject.toml moves them
# or --upgrade is given. jax and NCCL stay at what [tool.uv] in pyproject.toml names.
#
#   requirements.lock          for the jobs: bench.sh installs it, a cluster's nodes need it
#   requirements-dev.lock      added by test.sh
#   requirements-cuda13.lock   added on machines with GPUs
#
# The locks hold the hashes of every file of a version, so they serve x86_64 and aarch64. They hold no URLs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# write_lock FILE ARGUMENTS: write FILE, keeping its old pins where they still fit.
write_lock() {
  local file=$1
  shift
  if [[ -e $file ]]; then cp "$file" "$work/$file"; fi
  uv pip compile pyproject.toml --quiet --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
    --python-version 3.12 --python-platform x86_64-manylinux_2_28 --output-file "$work/$file" "$@"
  {
    echo "# Made by scripts/lock.sh from pyproject.toml: don't edit."
    # Drop uv's closing list of excluded packages.
    sed '/^# The following packages were excluded/,$d' "$work/$file" | sed '${/^$/d}'
  } >"$file"
}

write_lock requirements.lock --extra jobs "$@"
besides=(--constraint requirements.lock)
while read -r name; do besides+=(--no-emit-package "$name"); done < <(sed -n 's/^\([a-z0-9._-]*\)==.*/\1/p' requirements.lock)
write_lock requirements-dev.lock --extra jobs --group dev "${besides[@]}" "$@"
write_lock requirements-cuda13.lock --extra jobs --extra cuda13 "${besides[@]}" "$@"
