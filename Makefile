# Three commands do everything on a fresh machine: `make serve`, `make demo` and `make test`.
# They need Python 3.11+ (with venv), make, and a way to the package registry.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SERVED := $(VENV)/.served
PRODUCT := $(VENV)/.product
FEW_NEEDS := --editable '.[server,fast]' --group demo
NEEDS  := --editable '.[server,spark,fast,telemetry,storage,postgres]' --group demo
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
install = $(PIP) --constraint constraints.txt $(1) || \
	  { echo "The versions of constraints.txt are not to be had here; taking the newest."; $(PIP) $(1); }
# Where tests note that they could not be run (tests/support/programs.py).
NOT_RUN := $(VENV)/not-run
export JOURNEYMAN_NOT_RUN := $(CURDIR)/$(NOT_RUN)
# How long `make proof` takes.
MINUTES ?= 60
# Many tests wait for a server or a disk: one worker more than cores keeps two cores busy.
WORKERS ?= 3
# A run that gates a change does not depend on luck: its random examples are the same every time.
export HYPOTHESIS_PROFILE ?= gate
# Programs are started hundreds of times; half of a start would be spent on compiling sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup services wanted serve demo test kernels core simulation spark quick check site lock format bench compare fuzz proof clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/|/' | awk -F'|' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(STAMP) ## Make .venv with everything; .venv/bin/journeyman is the command

# A server, a worker and a web application need little.
$(SERVED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Journeyman needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Set PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "'$(PYTHON)' has no venv module; on Debian: apt-get install python3-venv"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) 'pip>=25.1'
	$(call install,$(FEW_NEEDS))
	@touch $(SERVED)

# The demo needs no tools of developers, which take as long to install as all the rest.
$(PRODUCT): $(SERVED)
	$(call install,$(NEEDS))
	@$(BIN)/journeyman pipeline prepare || echo "Spark starts slower without it; everything else works."
	@touch $(PRODUCT)

$(STAMP): $(PRODUCT)
	$(call install,--group dev)
	$(PIP) --upgrade --target $(VENV)/connect --group connect
	@touch $(STAMP)

services: ## Install the real Redis, RabbitMQ, PostgreSQL and Chromium that the tests start
	@bash scripts/install-services.sh

# Tests that need what cannot be installed here are not run, and are listed at the end.
wanted:
	-@bash scripts/install-services.sh

serve: $(SERVED) ## A server with its console, a worker and an example, left running until Ctrl-C
	$(BIN)/python examples/shop/run.py --serve demo-serve

demo: $(PRODUCT) ## Server, jobs, kill -9; logs damaged and repaired; the pipeline on Spark; a report
	$(BIN)/python scripts/demo.py

# Side by side, the longest first: each waits where another computes. Spark's tests share two sessions.
test: ## Lint, types, import rules, and all tests; a list of those that could not be run here
	@rm -f $(NOT_RUN); status=0; \
	$(MAKE) --no-print-directory --keep-going --jobs=4 spark core simulation check || status=$$?; \
	test ! -s $(NOT_RUN) || { status=1; echo; echo "NOT RUN:"; sort -u $(NOT_RUN); }; \
	exit $$status

# First, in one process: it compiles the kernels, and all tests, which others then find on the disk.
kernels: $(STAMP)
	$(BIN)/python -m pytest -q -m kernels

core: $(STAMP) wanted kernels
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --ignore tests/spark $(SIMULATION:%=--ignore %) -m "not kernels"

# A minute of one core, and it needs no kernels: it fills the core that they leave idle. A story
# follows the order of sets, so the same stories are told every time.
SIMULATION := tests/crash/test_simulation.py tests/crash/test_pair_simulation.py
simulation: $(STAMP)
	PYTHONHASHSEED=0 $(BIN)/python -m pytest -q $(SIMULATION)

spark: $(STAMP) kernels
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder tests/spark -m "not kernels"

# Those that start no server, browser or Spark, without the ones that cost seconds.
quick: $(STAMP) wanted ## The tests of modules, formats and laws: a minute and a half
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" \
	  tests/unit tests/property tests/golden tests/contract

check: $(STAMP) ## Lint, strict types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

site: $(STAMP) ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --site-dir site

lock: $(STAMP) ## Write the versions that are installed to constraints.txt, and uv.lock
	$(BIN)/python scripts/lock.py
	$(PIP) uv
	$(BIN)/uv lock

format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Measure, side by side with a peer; figures go to bench/results
	$(BIN)/python -m bench

compare: $(STAMP) services ## What Journeyman and its peers lose in crashes, power cuts and other faults: an hour or two
	$(PIP) --group peers
	-@apt-get install --yes beanstalkd nats-server faketime >/dev/null
	$(BIN)/python -m bench.compare

fuzz: $(STAMP) ## A million inputs a format and to whole servers, guided by coverage (needs a wheel of atheris)
	$(PIP) --group fuzz
	for target in ztick workq kestrel keyspace ledger server; do \
	  $(BIN)/python -m tests.fuzz.guided $$target -runs=1000000 || exit 1; done

proof: $(STAMP) services ## MINUTES=60: planted bugs, simulation, kills, power cuts from traces, faults, exhaustion, fuzzing
	PYTHONHASHSEED=0 $(BIN)/python scripts/proof.py --minutes $(MINUTES)

clean: ## Remove what the other targets made
	rm -rf $(VENV) demo demo-serve site .mypy_cache .ruff_cache .pytest_cache .hypothesis
