# Needs Python 3.11 or newer with pip and venv, make and git; the rest is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST := $(BIN)/pytest --numprocesses auto --dist worksteal
SOURCES := src tests benchmarks experiments scripts examples
# Numerical tests, which `make test` runs once more with loops compiled for another processor: a generic one, without AVX
# or FMA, or CPU, an LLVM name (haswell, znver3, skylake-avx512). An empty NUMBA_CPU_FEATURES means those of that processor;
# if it were unset, numba would use those of this machine.
NUMERIC := tests/test_compiled.py tests/test_vectors.py tests/test_losses.py tests/completion tests/shapley tests/valuation tests/federation
CPU ?= generic
ANOTHER := NUMBA_CPU_NAME=$(CPU) NUMBA_CPU_FEATURES= NUMBA_CACHE_DIR=$(CURDIR)/$(VENV)/numba-$(CPU)
# Of `make soak`: kills of processes for each of four kinds of training, and rounds over bad networks.
NETWORK_KILLS ?= 25
BAD_ROUNDS ?= 300
FAULTS := tests/network/test_kills.py tests/network/test_bad_networks.py tests/network/test_coming_back.py tests/network/test_faults.py
# The experiments of the paper that are measured at once.
JOBS ?= 2
# The folder of the data sets that do not ship with the package.
export VERFEDSV_DATA ?= $(wildcard $(CURDIR)/../shared/data)

.PHONY: demo test check processor soak bench paper paper-full format clean help

help:            ## Show this help.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; name another with: make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(INSTALL) --upgrade 'pip>=25.1'
	$(INSTALL) --group dev
	@touch $@

# Debian's browser, for tests of the report, and network namespaces, for those of three machines; what cannot be installed is
# skipped.
$(VENV)/.browser: $(VENV)/.created
	@if command -v chromium >/dev/null && command -v ip >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium iproute2 >/dev/null; \
	fi || true
	@command -v chromium >/dev/null || echo "chromium cannot be installed here: tests of the report in a browser are skipped."
	@if command -v chromium >/dev/null; then touch $@; fi

$(VENV)/.bench: $(VENV)/.installed
	$(INSTALL) --editable '.[bench]'
	@touch $@

demo: $(VENV)/.installed    ## Install, train eight clients on real data in two modes, and value them.
	$(BIN)/verfedsv demo

check: $(VENV)/.dev    ## Linters, types, layers and the faster tests.
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -q -m 'not slow and not soak'

test: $(VENV)/.dev $(VENV)/.browser    ## What CI runs: linters, types, layers, all tests, GPU kernels in a simulator, numbers for two processors.
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST)
	NUMBA_ENABLE_CUDASIM=1 $(PYTEST) -q tests/gpu/simulated
	$(ANOTHER) $(PYTEST) -q -m 'not slow' $(NUMERIC)

processor: $(VENV)/.dev    ## The numerical tests, compiled for another processor: make processor CPU=haswell.
	$(ANOTHER) $(PYTEST) -q -m 'not slow' $(NUMERIC)

soak: $(VENV)/.dev    ## Forty thousand damaged files, a hundred killed runs, and as many kills over a network: two hours.
	VERFEDSV_FUZZ=1300 VERFEDSV_KILLS=50 $(PYTEST) -q -m 'soak or not soak' tests/fuzz
	VERFEDSV_NETWORK_KILLS=$(NETWORK_KILLS) VERFEDSV_BAD_ROUNDS=$(BAD_ROUNDS) $(BIN)/pytest -q -m 'soak or not soak' $(FAULTS)
	VERFEDSV_WIRE_FUZZ=100000 $(BIN)/pytest -q -s -m soak tests/network/test_fuzz.py tests/network/test_load.py

bench: $(VENV)/.bench    ## Measure, and write docs/benchmarks.md; python -m benchmarks NAME measures one section.
	$(BIN)/python -u -m benchmarks

$(VENV)/.paper: $(VENV)/.installed
	$(INSTALL) --editable '.[paper]'
	@touch $@

paper: $(VENV)/.paper    ## Measure what is missing of the paper's tables and figures, two seeds of each: 1.1 to 3 hours in all.
	$(BIN)/verfedsv reproduce all --seeds 2 --jobs $(JOBS) --output docs

paper-full: $(VENV)/.paper    ## The same with all seeds: a night.
	$(BIN)/verfedsv reproduce all --jobs $(JOBS) --output docs

format: $(VENV)/.dev    ## Let ruff format and fix the code.
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

clean:           ## Remove what the other targets created.
	rm -rf $(VENV) verfedsv-demo build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
