# Two commands set up everything; they need Python 3.11 or later and make:
#   make demo    install into .venv, simulate a small country, map it, print where the maps are
#   make test    install into .venv, run the tests
PYTHON ?= python3
VENV   ?= .venv
DEMO   ?= demo
CONFIG ?= $(DEMO)/disagg.yaml
CRON   ?= 0 6 * * *
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PYTEST ?= -m "not slow"
N      ?= 200

.DEFAULT_GOAL := help
.PHONY: help install demo serve test slow faults lint types imports bench gpu clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | sort

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11; install a newer one, or run make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: $(PYTHON) cannot make environments; install its venv package (Debian: apt-get install python3-venv)" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP)  ## make the environment in .venv

demo: $(STAMP)  ## simulate a small country, run all stages on it, print where the maps are
	$(BIN)/disagg demo $(DEMO) --size small --seed 1
	$(BIN)/disagg run $(DEMO)/disagg.yaml

serve: $(STAMP)  ## update the map of CONFIG on a schedule and when counts arrive; the UI is at port 4200
	$(BIN)/python -m flows.serve $(CONFIG) --cron "$(CRON)"

test: $(STAMP)  ## run the tests, except the long ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(PYTEST)

slow: $(STAMP)  ## run the long tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow

faults: $(STAMP)  ## provoke N real failures: benchmarks/results/faults.json (half an hour for 200)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults --count $(N)

lint: $(STAMP)  ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## check types
	$(BIN)/mypy

imports: $(STAMP)  ## check the import layers
	$(BIN)/lint-imports

bench: $(STAMP)  ## run the benchmarks; JSON goes to benchmarks/results (an hour and more)
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.pairs
	$(BIN)/python -m benchmarks.swiss_roll
	$(BIN)/python -m benchmarks.elevators
	$(BIN)/python -m benchmarks.madagascar
	$(BIN)/python -m benchmarks.malaria
	$(BIN)/python -m benchmarks.country
	$(BIN)/python -m benchmarks.coordination
	$(BIN)/python -m benchmarks.plan
	$(BIN)/python -m benchmarks.blrt
	$(BIN)/python -m benchmarks.vwsgp build
	$(BIN)/python -m benchmarks.psi_vgpmil
	$(BIN)/python -m benchmarks.gpmil
	$(BIN)/python -m benchmarks.labels --country
	$(BIN)/python -m benchmarks.year

gpu: $(STAMP)  ## on a machine with a GPU: install CuPy, run the GPU tests and benchmark
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,gpu]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m gpu tests/models/backend
	$(BIN)/python -m benchmarks.gpu

clean:  ## remove the environment, the demo and all caches
	rm -rf $(VENV) $(DEMO) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
