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
# uv installs in a quarter of the time; where it cannot (an index that pip alone is told of), pip does.
UV     := UV_NATIVE_TLS=true $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt
PYTEST ?= -m "not slow and not ci"
JOBS   ?= 2
RUN    := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal
N      ?= 200
FORCE  ?=
ONCE   := $(BIN)/python -m benchmarks.once $(if $(FORCE),--force)

.DEFAULT_GOAL := help
.PHONY: help install dev demo serve test slow faults lint types imports reference site pictures bench bench-quick bump evidence gpu clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | sort

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11; install a newer one, or run make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: $(PYTHON) cannot make environments; install its venv package (Debian: apt-get install python3-venv)" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) uv || true
	@echo "installing disagg into $(VENV)"
	@$(UV) -e . 2>/dev/null || $(PIP) -e .
	@touch $@

$(STAMP)-%: $(STAMP)
	@echo "installing the extra [$*] into $(VENV)"
	@$(UV) -e '.[$*]' 2>/dev/null || $(PIP) -e '.[$*]'
	@touch $@

install: $(STAMP)  ## make the environment in .venv: what `disagg` needs to run

dev: $(DEV)  ## add the development tools to the environment

demo: $(STAMP)  ## simulate a small country, run all stages on it, print where the maps are
	$(BIN)/disagg demo $(DEMO) --size small --seed 1
	$(BIN)/disagg run $(DEMO)/disagg.yaml

serve: $(FLOWS)  ## update the map of CONFIG on a schedule and when counts arrive; the UI is at port 4200
	$(BIN)/python -m flows.serve $(CONFIG) --cron "$(CRON)"

test: $(DEV)  ## run the tests that take less than two seconds each (.ci/run runs more)
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

bench: $(DEV)  ## run the benchmarks that are not of this code yet, for hours; FORCE=1 runs all; JSON goes to benchmarks/results
	$(ONCE) benchmarks.speed
	$(ONCE) benchmarks.performance
	$(ONCE) benchmarks.before
	$(ONCE) benchmarks.pairs
	$(ONCE) benchmarks.elevators
	$(ONCE) benchmarks.swiss_roll
	$(ONCE) benchmarks.responses
	$(ONCE) benchmarks.madagascar
	$(ONCE) benchmarks.country --months 11
	$(ONCE) benchmarks.coordination
	$(ONCE) benchmarks.plan
	$(ONCE) benchmarks.affordable
	$(ONCE) benchmarks.distances
	$(ONCE) benchmarks.ingest
	$(ONCE) benchmarks.area_effect
	$(ONCE) benchmarks.mil_sets
	$(ONCE) benchmarks.mil_papers
	$(ONCE) benchmarks.blrt
	$(ONCE) benchmarks.vwsgp build
	$(ONCE) benchmarks.psi_vgpmil
	$(ONCE) benchmarks.gpmil
	$(ONCE) benchmarks.labels --country
	$(ONCE) benchmarks.year
	$(ONCE) benchmarks.designs
	$(ONCE) benchmarks.noise
	$(ONCE) benchmarks.trust
	$(ONCE) benchmarks.members
	$(ONCE) benchmarks.folds
	$(ONCE) benchmarks.sbc --countries 100
	$(ONCE) benchmarks.sbc_months
	$(ONCE) benchmarks.months_exact
	$(BIN)/python -m benchmarks.sbc_page
	$(ONCE) benchmarks.fits_fuzz
	$(ONCE) benchmarks.levels
	$(ONCE) benchmarks.verdicts
	$(ONCE) benchmarks.alarms
	$(ONCE) benchmarks.months
	$(ONCE) benchmarks.area_changes
	$(ONCE) benchmarks.months_cost
	$(ONCE) benchmarks.stand_ins
	$(ONCE) benchmarks.censored
	$(ONCE) benchmarks.points
	$(ONCE) benchmarks.madagascar_points
	$(ONCE) benchmarks.zones
	$(ONCE) benchmarks.climate_cube
	$(ONCE) benchmarks.vietnam
	$(ONCE) benchmarks.mutate
	$(BIN)/python -m benchmarks.stale  # ends with an error where a page quotes what was not measured again

bench-quick: $(DEV)  ## check in minutes that benchmarks still compare what they say; figures go to build/quick
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.quick

evidence: $(DEV)  ## write docs/evidence.md from the figures of all benchmarks
	$(BIN)/python -m benchmarks.evidence

gpu: $(DEV) $(GPU)  ## on a machine with a GPU: install CuPy, run the GPU tests and benchmark
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m gpu tests/models
	$(BIN)/python -m benchmarks.gpu

clean:  ## remove the environment, the demo and all caches
	rm -rf $(VENV) $(DEMO) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
