# Two commands set up everything; they need Python 3.11 or later and make:
#   make demo    install into .venv, simulate a small country, map it, print where the maps are
#   make test    add the development tools, run the tests
PYTHON ?= python3
VENV   ?= .venv
DEMO   ?= demo
CONFIG ?= $(DEMO)/disagg.yaml
CRON   ?= 0 6 * * *
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
FLOWS  := $(VENV)/.installed-flows
GPU    := $(VENV)/.installed-gpu
SITE   := $(VENV)/.installed-site
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST ?= -m "not slow and not ci"
JOBS   ?= 2
RUN    := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal
N      ?= 200

.DEFAULT_GOAL := help
.PHONY: help install dev demo serve test slow faults lint types imports reference site pictures bench bump evidence gpu clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | sort

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11; install a newer one, or run make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: $(PYTHON) cannot make environments; install its venv package (Debian: apt-get install python3-venv)" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

$(STAMP)-%: $(STAMP)
	$(PIP) -e '.[$*]'
	@touch $@

install: $(STAMP)  ## make the environment in .venv: what `disagg` needs to run

dev: $(DEV)  ## add the development tools to the environment

demo: $(STAMP)  ## simulate a small country, run all stages on it, print where the maps are
	$(BIN)/disagg demo $(DEMO) --size small --seed 1
	$(BIN)/disagg run $(DEMO)/disagg.yaml

serve: $(FLOWS)  ## update the map of CONFIG on a schedule and when counts arrive; the UI is at port 4200
	$(BIN)/python -m flows.serve $(CONFIG) --cron "$(CRON)"

test: $(DEV)  ## run the tests that take no more than some seconds (.ci/run runs more)
	$(RUN) $(PYTEST)

slow: $(DEV)  ## run the long tests
	$(RUN) -m slow

faults: $(DEV)  ## provoke N real failures, end commands at 50 moments: benchmarks/results/faults.json, terminated.json (an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults --count $(N)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults --group publishing --count $(N) --reads 10000
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults.terminated --count 50

lint: $(DEV)  ## check style, and the spelling of the pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md CHANGELOG.md docs

types: $(DEV)  ## check types
	$(BIN)/mypy

imports: $(DEV)  ## check the import layers
	$(BIN)/lint-imports

reference: $(STAMP)  ## write the references of the configuration, with its JSON Schema, and of the command line into docs
	$(BIN)/python -m pipeline.config.reference docs
	$(BIN)/python -m pipeline.cli.reference docs

site: $(SITE)  ## build the documentation as a site that needs no network: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bump: $(DEV)  ## renew constraints.txt in an environment of its own, if the tests that must pass do
	JOBS=$(JOBS) PYTHON=$(PYTHON) UV=$(BIN)/uv infra/bump.sh

pictures: $(DEV)  ## make the runs and the pictures of the README again, in the folder pictures
	$(BIN)/python -m benchmarks.pictures pictures

bench: $(DEV)  ## run the benchmarks; JSON goes to benchmarks/results (an hour and more)
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.performance
	$(BIN)/python -m benchmarks.pairs
	$(BIN)/python -m benchmarks.elevators
	$(BIN)/python -m benchmarks.responses
	$(BIN)/python -m benchmarks.madagascar
	$(BIN)/python -m benchmarks.country
	$(BIN)/python -m benchmarks.coordination
	$(BIN)/python -m benchmarks.plan
	$(BIN)/python -m benchmarks.affordable
	$(BIN)/python -m benchmarks.distances
	$(BIN)/python -m benchmarks.ingest
	$(BIN)/python -m benchmarks.area_effect
	$(BIN)/python -m benchmarks.mil_sets
	$(BIN)/python -m benchmarks.mil_papers
	$(BIN)/python -m benchmarks.blrt
	$(BIN)/python -m benchmarks.vwsgp build
	$(BIN)/python -m benchmarks.psi_vgpmil
	$(BIN)/python -m benchmarks.gpmil
	$(BIN)/python -m benchmarks.labels --country
	$(BIN)/python -m benchmarks.year
	$(BIN)/python -m benchmarks.designs
	$(BIN)/python -m benchmarks.noise
	$(BIN)/python -m benchmarks.fits_fuzz
	$(BIN)/python -m benchmarks.levels
	$(BIN)/python -m benchmarks.verdicts
	$(BIN)/python -m benchmarks.alarms
	$(BIN)/python -m benchmarks.months
	$(BIN)/python -m benchmarks.area_changes
	$(BIN)/python -m benchmarks.months_cost
	$(BIN)/python -m benchmarks.censored
	$(BIN)/python -m benchmarks.points
	$(BIN)/python -m benchmarks.madagascar_points
	$(BIN)/python -m benchmarks.zones
	$(BIN)/python -m benchmarks.climate_cube
	$(BIN)/python -m benchmarks.vietnam
	$(BIN)/python -m benchmarks.mutate
	$(BIN)/python -m benchmarks.stale  # ends with an error where a page quotes what was not measured again

evidence: $(DEV)  ## write docs/evidence.md from the figures of all benchmarks
	$(BIN)/python -m benchmarks.evidence

gpu: $(DEV) $(GPU)  ## on a machine with a GPU: install CuPy, run the GPU tests and benchmark
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m gpu tests/models
	$(BIN)/python -m benchmarks.gpu

clean:  ## remove the environment, the demo and all caches
	rm -rf $(VENV) $(DEMO) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
