#!/usr/bin/env bash
# Writes the locks from pyproject.toml: scripts/lock.sh [--upgrade]. Needs uv. Pins stay unless pyproject.toml moves them
# or --upgrade is given. jax and NCCL stay at what [tool.uv] in pyproject.toml names.
#
#   requirements.lock          the jobs: what bench.sh installs, what a cluster's nodes need
#   requirements-dev.lock      what test.sh needs besides
#   requirements-cuda13.lock   what a machine with GPUs needs besides
#
# Hashes of all of a version's files are in, so the locks serve x86_64 and aarch64; there is no URL in them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# write_lock FILE ARGUMENTS: FILE's old pins are kept where they fit.
write_lock() {
  local file=$1
  shift
  if [[ -e $file ]]; then cp "$file" "$work/$file"; fi
  uv pip compile pyproject.toml --quiet --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
    --python-version 3.12 --python-platform x86_64-manylinux_2_28 --output-file "$work/$file" "$@"
  {
    echo "# Made by scripts/lock.sh from pyproject.toml: don't edit."
    # uv ends with a list of what it left out.
    sed '/^# The following packages were excluded/,$d' "$work/$file" | sed '${/^$/d}'
  } >"$file"
}

write_lock requirements.lock --extra jobs "$@"
besides=(--constraint requirements.lock)
while read -r name; do besides+=(--no-emit-package "$name"); done < <(sed -n 's/^\([a-z0-9._-]*\)==.*/\1/p' requirements.lock)
write_lock requirements-dev.lock --extra jobs --group dev "${besides[@]}" "$@"
write_lock requirements-cuda13.lock --extra jobs --extra cuda13 "${besides[@]}" "$@"
