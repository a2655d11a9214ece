#!/bin/sh
# Renew constraints.txt: `make bump`. Every dependency at its newest version that the holds allow, in an environment
# of its own; then the tests that must pass. The file changes only if they do.
set -eu
cd "$(dirname "$0")/.."
environment=${BUMP_VENV:-.venv-bump}
holds=$(mktemp)
renewed=$(mktemp)
frozen=$(mktemp)
trap 'rm -f "$holds" "$renewed" "$frozen"' EXIT

# The reasons are at the head of constraints.txt.
cat >"$holds" <<'HOLDS'
fastapi<0.155
sqlalchemy<2.1
HOLDS

"${PYTHON:-python3}" -m venv --clear "$environment"
# shellcheck disable=SC1091
. "$environment/bin/activate"
install() { python -m pip install --quiet --disable-pip-version-check -c "$holds" "$@"; }
# First what pins others narrowly: else pip tries hundreds of versions of it that fit the newest of those.
install 'aiobotocore[boto3]' s3fs prefect
install -e '.[dev,kubernetes]'
python -m pip freeze --exclude-editable --exclude disagg >"$frozen"
{
  sed -n '/^#/p' constraints.txt
  # What belongs to another extra (a GPU's, a gateway's) keeps its version.
  awk -F== 'NR == FNR { new[tolower($1)] = 1; print; next } !/^#/ && !(tolower($1) in new)' \
    "$frozen" constraints.txt | sort -f
} >"$renewed"
diff -u constraints.txt "$renewed" || true

export OMP_NUM_THREADS=1
echo "bump: the tests that must pass"
ruff check . && ruff format --check . && mypy && lint-imports
# Formats that are on disks, the real Prefect server, the object store, what a run gives to the byte, and all else.
python -m pytest -q tests/compatibility
python -m pytest -q -m "not slow" tests/flows tests/pipeline/storage tests/faults
python -m pytest -q -m "not slow and not ci" -n "${JOBS:-2}" --dist worksteal
python -m pytest -q -m slow tests/flows/test_real.py tests/flows/test_serve.py

cp "$renewed" constraints.txt
echo "bump: constraints.txt is renewed; commit it with a news fragment (docs/changes/README.md)"
