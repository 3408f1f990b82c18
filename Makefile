# make demo        ask the demo model one question
# make test        all tests
# make check       format, lint, types, layers and the fast tests; under a minute
# make bench       plain and speculative decoding side by side: localspec bench BENCH
# make train-demo  make the demo model anew: some hours on two cores (DATA, WORK; LONG and LAST in tokens)
#
# PYTHON=... uses that interpreter as it is, and no .venv is made. On Linux, plain PyPI brings torch with CUDA;
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu brings the smaller one without.

VENV := .venv
PYTHON := $(VENV)/bin/python
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

# bytecode is kept even where the environment says not to: to compile every test anew takes as long as importing torch
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(PYTHON) -m pytest --numprocesses auto --dist worksteal

BENCH ?=
DATA ?= data
WORK ?= build/demo
LONG ?= 25e6
LAST ?= 4e6

ifeq ($(origin PYTHON),file)
INSTALLED := $(VENV)/.installed
TESTABLE := $(VENV)/.testable
endif

.PHONY: demo test fast-test lint check bench train-demo clean

demo: $(VENV)/.installed
	$(VENV)/bin/localspec run "Who are you?"

test: $(TESTABLE)
	$(PYTEST)

fast-test: $(TESTABLE)
	$(PYTEST) -m "not slow"

lint: $(TESTABLE)
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(dir $(PYTHON))lint-imports

check: $(TESTABLE)
	$(MAKE) --jobs=2 lint fast-test

bench: $(INSTALLED)
	$(PYTHON) -m localspec bench $(BENCH)

# glibc otherwise hands the large buffers back after every step, which costs a third of the time
train-demo: export MALLOC_MMAP_MAX_ = 0
train-demo: export MALLOC_TRIM_THRESHOLD_ = 100000000000
train-demo: $(INSTALLED)
	$(PYTHON) scripts/train_demo.py long --data $(DATA) --work $(WORK) --tokens $(LONG)
	$(PYTHON) scripts/train_demo.py last --data $(DATA) --work $(WORK) --tokens $(LAST)
	$(PYTHON) scripts/demo_card.py --data $(DATA) --work $(WORK) --out localspec/demo

# editable, so that a changed source needs no new installation
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || python3 -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.testable: $(VENV)/.installed
	$(PIP) -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
