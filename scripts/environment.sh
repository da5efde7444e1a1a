# shellcheck shell=bash
# Sourced by the scripts that run Python: make_environment LOCK... makes .venv from hashed locks, or completes it.
#
# .venv holds, beside what Python puts there:
#   requirements*.lock   copies of the installed locks: where the checkout's differ, .venv is out of date
#   installing/          those copies during an installation; if it is left behind, .venv is broken and made anew
#   lock                 held by the process that is changing .venv
# A .pth file puts the checkout on the path, as an editable install would. It needs no build backend, so nothing beyond
# the locks is fetched. Messages go to standard error: standard output belongs to the job.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
site=$venv/lib/python3.12/site-packages

say() { printf '%s\n' "$*" >&2; }

gpu_found() { [[ -e /dev/nvidia0 ]] || nvidia-smi -L &>/dev/null; }

is_python_312() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' &>/dev/null; }

make_environment() {
  local locks=("$@")
  if gpu_found; then locks+=(requirements-cuda13.lock); fi
  if is_ready "${locks[@]}"; then return; fi
  mkdir -p "$venv"
  (
    if command -v flock >/dev/null && ! flock --nonblock 9; then
      say "Waiting for another process that installs into $venv ..."
      flock 9
    fi
    # The other process may have done all of it.
    if ! is_ready "${locks[@]}"; then install_locks "${locks[@]}"; fi
  ) 9>>"$venv/lock"
}

is_ready() {
  [[ -x $venv/bin/python && ! -e $venv/installing && "$(cat "$site/cmkernel.pth" 2>/dev/null)" == "$root" ]] || return
  local lock
  for lock in "$@"; do cmp -s "$root/$lock" "$venv/$lock" || return; done
}

install_locks() {
  local began=$SECONDS lock arguments=()
  if [[ -e $venv/installing ]]; then
    say "An installation into $venv was cut short: starting over"
    clear_environment
  elif [[ -e $site/cmkernel.pth && "$(<"$site/cmkernel.pth")" != "$root" ]]; then
    say "$venv was made for $(<"$site/cmkernel.pth"): starting over"
    clear_environment
  elif [[ -e $venv/bin/python ]] && ! is_python_312 "$venv/bin/python"; then
    say "$venv isn't Python 3.12: starting over"
    clear_environment
  fi
  if ! is_python_312 "$venv/bin/python"; then create_environment; fi

  say "Installing $* into $venv (a minute or two on first use) ..."
  mkdir "$venv/installing"
  for lock in "$@"; do
    cp "$root/$lock" "$venv/installing/"
    arguments+=(-r "$venv/installing/$lock")
  done
  # --no-deps: the locks name every package.
  if command -v uv >/dev/null; then
    uv pip install --quiet --python "$venv/bin/python" --no-deps --require-hashes "${arguments[@]}" >&2
  else
    "$venv/bin/python" -m pip --version &>/dev/null || "$venv/bin/python" -m ensurepip >/dev/null
    "$venv/bin/python" -m pip install --quiet --quiet --no-deps --require-hashes "${arguments[@]}" >&2
  fi
  printf '%s\n' "$root" >"$site/cmkernel.pth"
  mv "$venv"/installing/* "$venv/"
  rmdir "$venv/installing"
  say "Installed in $((SECONDS - began)) s"
}

clear_environment() {
  # Keep the lock file: this process holds it.
  find "$venv" -mindepth 1 -maxdepth 1 ! -name lock -exec rm -rf {} +
}

create_environment() {
  local candidate
  if command -v uv >/dev/null; then
    uv venv --quiet --allow-existing --python 3.12 "$venv" >&2
    return
  fi
  cd "$root" || return # where .python-version makes pyenv's shims pick 3.12
  for candidate in ${PYTHON:+"$PYTHON"} python3.12 python3 python; do
    if ! is_python_312 "$candidate"; then continue; fi
    if "$candidate" -m venv "$venv" >&2; then return; fi
    say "$candidate can't make virtual environments (on Debian and Ubuntu: apt-get install python3.12-venv)"
    return 1
  done
  say "Python 3.12 is needed and none was found as ${PYTHON:+PYTHON=$PYTHON, }python3.12, python3 or python."
  say "Install it (apt-get install python3.12-venv; or pyenv install 3.12), or install uv, which fetches it itself;"
  say "or name an interpreter: PYTHON=/path/to/python3.12 $0"
  return 1
}
