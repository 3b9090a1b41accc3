# Sourced by scripts/test and scripts/demo: make .venv and keep it in step.
#
#   use_venv NAME INSTALL   create .venv when missing, then call the function INSTALL in
#                           it, unless NAME was installed for this pyproject.toml before

die() {
  echo "$0: $*" >&2
  exit 1
}

find_python() {
  local name
  for name in python3 python3.14 python3.13 python3.12 python3.11 python; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  die "no Python 3.11 or newer; install one and put it on PATH"
}

use_venv() {
  local name=$1 install=$2 stamp want base
  if [ ! -x .venv/bin/python ]; then
    base=$(find_python)
    echo "== making .venv with $base"
    "$base" -m venv .venv || die "$base cannot make a venv; on Debian: apt install python3-venv"
    .venv/bin/python -m pip install -qq --upgrade pip
  fi
  export PATH="$PWD/.venv/bin:$PATH"
  stamp=.venv/installed-$name
  want=$(python -c 'import hashlib, pathlib as p, sys
print(hashlib.sha256(b"".join(p.Path(f).read_bytes() for f in sys.argv[1:])).hexdigest())' \
    pyproject.toml scripts/venv.sh)
  if [ "$(cat "$stamp" 2>/dev/null || true)" != "$want" ]; then
    echo "== installing what $name needs (once; minutes at most)"
    "$install" || die "the installation failed; see above"
    echo "$want" > "$stamp"
  fi
}
