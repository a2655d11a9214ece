#!/bin/sh
# Renew constraints.txt and the lists of packages of the image: `make bump`.
#
# Every dependency at its newest version that the holds allow, in an environment of its own; then the tests that must
# pass. The files keep their content unless they do. `uv`, of the development tools, resolves: pip tries hundreds of
# versions of what others pin narrowly. UV names it where it is not on the path.
set -eu
cd "$(dirname "$0")/.."
environment=${BUMP_VENV:-.venv-bump}
files='constraints.txt infra/image/requirements.txt infra/image/requirements-cuda.txt'
work=$(mktemp -d)
# shellcheck disable=SC2086  # one word a file
tar -cf "$work/before.tar" $files
finished=no
finish() {
  if [ "$finished" = no ]; then
    tar -xf "$work/before.tar"
    echo "bump: not finished; constraints.txt is as it was" >&2
  fi
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The reasons are at the head of constraints.txt.
cat >"$work/holds.txt" <<'HOLDS'
fastapi<0.155
sqlalchemy<2.1
HOLDS

# Not the peers of one benchmark: TensorFlow and PyTorch would decide on versions for everybody.
extras=$(sed -n '/^\[project.optional-dependencies\]/,/^\[/s/^\([a-z0-9-]*\) = \[.*/--extra=\1/p' pyproject.toml |
  grep -vx -e --extra=peers)
# Its own list of certificates has none of a proxy.
export UV_NATIVE_TLS=true
# shellcheck disable=SC2086  # one word an extra
"${UV:-uv}" pip compile --quiet --upgrade $extras --python-version 3.11 --no-header --no-annotate \
  --constraint "$work/holds.txt" --output-file "$work/resolved.txt" pyproject.toml
{
  sed -n '/^#/p' constraints.txt
  cat "$work/resolved.txt"
} >"$work/renewed.txt"
if diff -u constraints.txt "$work/renewed.txt"; then
  finished=yes
  echo "bump: constraints.txt has the newest versions already"
  exit 0
fi
cp "$work/renewed.txt" constraints.txt
"${PYTHON:-python3}" -m venv --clear "$environment"
# shellcheck disable=SC1091
. "$environment/bin/activate"
python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,kubernetes]'
python infra/image/lock.py

export OMP_NUM_THREADS=1
echo "bump: the tests that must pass"
ruff check .
ruff format --check .
mypy
lint-imports
# The fixtures of earlier versions first: they are quick, and nothing else matters more.
python -m pytest -q tests/compatibility
python -m pytest -q -m "not slow" -n "${JOBS:-2}" --dist worksteal
python -m pytest -q -m slow tests/flows

finished=yes
echo "bump: constraints.txt is renewed; commit it with a news fragment (docs/changes/README.md)"
