# make         a virtual environment in .venv with everything in it; a second make reinstalls nothing
# make demo    set up, then tokenizer -> pretraining -> SFT -> a hundred questions on the built-in corpus
# make test    set up, then the test suite (PYTEST="-k store" picks tests)
# make test-browser  the pages in a real Chromium (apt-get install chromium); MINIMIND_SCREENSHOTS=DIR keeps pictures
# make check   set up, then lint, format and types, and known holes in the pinned versions where OSV can be asked
# make coverage  make test, with the lines and branches that it runs; docs/testing.md tells how to read it
# make mutants set up, then in the background: a sample of faults against the tests (MUTANTS="--size 50 --only loop");
#              the same command goes on after a stop, and says what is known so far: MUTANTS=--list
#
# PYTHON=python3.12 chooses the interpreter, EXTRAS=test,data,bnb the extras of setup.cfg,
# TORCH_FLAGS="--index-url ..." goes to torch's install alone (its own index, for a chosen CUDA or the CPU build), and
# PIP_FLAGS to every one.

PYTHON ?= python3
EXTRAS ?= test,data
TORCH_FLAGS ?=
PIP_FLAGS ?=
PYTEST ?=
JOBS ?= 2
MUTANTS ?=
MUTANTS_LOG ?= $(HOME)/.cache/minimind/mutants.log

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt
STAMP := $(VENV)/.installed-$(EXTRAS)

.DEFAULT_GOAL := setup
.PHONY: setup demo test test-browser check coverage mutants clean

setup: $(STAMP)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or newer is needed, this is " + sys.version.split()[0] + \
	    ": make PYTHON=/path/to/python3.11" if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)

# torch first: deepspeed's setup.py imports it, which is also why nothing here is built in isolation.
$(STAMP): setup.cfg constraints.txt | $(BIN)/python
	$(PIP) setuptools wheel
	$(PIP) $(TORCH_FLAGS) torch
	$(PIP) --no-build-isolation -e '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP)
	$(BIN)/minimind demo

# One thread a worker: tiny models gain nothing from two, and the workers would fight over the cores.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST)

test-browser: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/inference/serving tests/commands/page $(PYTEST)

# The table in docs/testing.md is between pytest's report and its closing line, which stays the last one.
COVERAGE := --cov --cov-report= -p tests.coverage_table

coverage:
	$(MAKE) test PYTEST="$(COVERAGE) $(PYTEST)"

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/audit_pins.py

ifeq ($(filter --list,$(MUTANTS)),)
mutants: $(STAMP)
	$(PIP) -q -e '.[mutants]' --no-build-isolation
	@mkdir -p $(dir $(MUTANTS_LOG))
	nohup nice $(BIN)/python tools/mutants.py $(MUTANTS) >> $(MUTANTS_LOG) 2>&1 & echo "in the background: $(MUTANTS_LOG)"
else
mutants: $(STAMP)
	$(BIN)/python tools/mutants.py $(MUTANTS)
endif

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage .coverage.*
