# make demo        fetch a published model, once, and ask it two questions
# make real-models  fetch the published model that tests use, and name the others
# make test        the tests that every change must pass, in 15 minutes of two cores
# make test-all    the same, published models with every drafter and packing, and what takes long; before a release
# make check       format, lint, types, layers and the fast tests; under a minute
# make torture     faults of the disk, signals and damaged files for so long (TORTURE: --seconds 1800 --seed 7, --kills 1000, --every run)
# make bench       plain and speculative decoding side by side: localspec bench BENCH
# make bench-report  this engine beside llama.cpp and transformers, into docs/figures/benchmarks.md (BENCH: its options)
# make pictures    the pictures of the README, from the real program (PICTURES: options of tools/pictures.py)
# make train-demo  make the demo model anew: some hours on two cores (DATA, WORK; LONG and LAST in tokens)
# make native      compile the native library where its sources changed; the others do so first
# make wheels      wheels for every platform, into dist/, with their checksums
# make release     sdist and wheels of the version that CHANGELOG.md begins with, tried in empty environments (REHEARSAL=1)
# make test-aarch64  the native library for ARM, tested on this machine by qemu (Debian: qemu-user)
#
# PYTHON=... uses that interpreter as it is, and no .venv is made. On Linux, plain PyPI brings torch with CUDA;
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu brings the smaller one without.

VENV := .venv
PYTHON := $(VENV)/bin/python
# to compile all that comes takes as long as to install it: what tests import is compiled then
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile -c constraints.txt

# bytecode is kept even where the environment says not to: to compile every test anew takes as long as importing torch
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(PYTHON) -m pytest --numprocesses auto --dist worksteal

BENCH ?=
TORTURE ?=
PICTURES ?=
DATA ?= data
WORK ?= build/demo
LONG ?= 25e6
LAST ?= 4e6

ifeq ($(origin PYTHON),file)
COMPILER := $(VENV)/.compiler
INSTALLED := $(VENV)/.installed
TESTABLE := $(VENV)/.testable
COLLECTED := $(VENV)/.collected
endif

.PHONY: demo real-models native test test-all fast-test torture lint check bench bench-report pictures train-demo wheels release test-aarch64 clean

demo: $(VENV)/.compiled
	$(VENV)/bin/python localspec/native/build.py
	@$(VENV)/bin/python tools/demo.py
	@echo "Go on with: $(VENV)/bin/localspec chat"

real-models: $(INSTALLED)
	$(PYTHON) tools/real_models.py

native: $(COMPILER)
	$(PYTHON) localspec/native/build.py

test: $(COLLECTED) native
	-$(MAKE) real-models # without it, its tests are skipped
	$(PYTEST)

test-all: $(COLLECTED) native
	-$(MAKE) real-models # without it, a test says so
	REQUIRE_REAL_MODELS=1 WHOLE_MATRIX=1 $(PYTEST)

fast-test: $(COLLECTED) native
	$(PYTEST) -m "not slow and not real"

torture: $(TESTABLE) native
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(PYTHON) -m torture $(TORTURE)

lint: $(TESTABLE)
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) tools/avoided_words.py
	$(PYTHON) -m mypy
	$(PYTHON) -m mypy --config-file research/mypy.ini
	$(dir $(PYTHON))lint-imports

check: $(TESTABLE)
	$(MAKE) --jobs=2 lint fast-test

bench: $(INSTALLED) native
	$(PYTHON) -m localspec bench $(BENCH)

bench-report: $(TESTABLE) native
	$(PYTHON) research/bench_report.py $(BENCH)

pictures: $(TESTABLE) native
	$(PYTHON) tools/pictures.py $(PICTURES)

# glibc otherwise hands the large buffers back after every step, which costs a third of the time
train-demo: export MALLOC_MMAP_MAX_ = 0
train-demo: export MALLOC_TRIM_THRESHOLD_ = 100000000000
train-demo: $(INSTALLED) native
	$(PYTHON) research/train_demo.py long --data $(DATA) --work $(WORK) --tokens $(LONG)
	$(PYTHON) research/train_demo.py last --data $(DATA) --work $(WORK) --tokens $(LAST)
	$(PYTHON) research/demo_card.py --data $(DATA) --work $(WORK) --out localspec/demo

wheels: $(TESTABLE)
	$(PYTHON) tools/release.py --wheels

release: $(TESTABLE)
	$(PYTHON) tools/release.py $(if $(REHEARSAL),--rehearsal)

test-aarch64: $(TESTABLE)
	PYTHON=$(PYTHON) tools/test_aarch64.sh

$(VENV)/.compiler: constraints.txt
	test -x $(VENV)/bin/python || python3 -m venv $(VENV)
	$(PIP) hatchling ziglang
	touch $@

# editable, so that a changed source needs no new installation; `native` compiles the library at the same time
$(VENV)/.installed $(VENV)/.testable: export BUILD_NATIVE_FOR := none
$(VENV)/.installed: pyproject.toml constraints.txt hatch_build.py $(VENV)/.compiler
	$(PIP) --no-build-isolation -e .
	touch $@

# on every core, where pip takes one; a file for another Python compiles nowhere
$(VENV)/.compiled: $(VENV)/.installed
	$(VENV)/bin/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true
	touch $@

$(VENV)/.testable: $(VENV)/.installed
	$(PIP) --no-build-isolation -e ".[dev]"
	touch $@

# one process compiles what each of several would compile otherwise: the tests, and what they import
$(VENV)/.collected: $(VENV)/.testable
	$(PYTEST) --numprocesses 0 --collect-only --snapshot-warn-unused -q >/dev/null
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	rm -f localspec/native/localspec_native.*
