# make demo          fetch a published model once, and ask it two questions
# make real-models   fetch the published model that tests use, and name the others
# make test          run the tests that every change must pass: 15 minutes on two cores
# make test-all      the same, and every drafter and packing on the published models; before a release
# make check         check format, lint, types and layers, and run the fast tests: under a minute
# make torture       test with disk faults, signals and damaged files (TORTURE: --seconds 1800 --seed 7, --kills 1000, --every run)
# make bench         compare plain and speculative decoding: localspec bench BENCH
# make pictures      draw the pictures of the README with the real program (PICTURES: options of tools/pictures.py)
# make train-demo    train the demo model from scratch: some hours on two cores (DATA, WORK; LONG and LAST in tokens)
# make native        compile the changed sources of the native library; targets that need the library do so themselves
# make wheels        build the wheels of all platforms, with checksums, in dist/
# make release       build sdist and wheels of the newest version in CHANGELOG.md, and try them in empty environments (REHEARSAL=1)
# make test-aarch64  test the native library for ARM on this machine, with qemu (Debian: qemu-user)
#
# PYTHON=... uses that interpreter, and no .venv is made. On Linux, PyPI's torch brings CUDA;
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu brings the smaller torch without it.

VENV := .venv
PYTHON := $(VENV)/bin/python
# compiling every installed file would double the time of the installation; imports compile what they need
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check install --quiet --no-compile -c constraints.txt

# write bytecode whatever the environment says: compiling every test takes as long as importing torch
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

.PHONY: demo real-models native test test-all fast-test torture lint check bench pictures train-demo wheels release test-aarch64 clean

demo: $(VENV)/.compiled
	$(VENV)/bin/python localspec/native/build.py
	@$(VENV)/bin/python tools/demo.py
	@echo "Go on with: $(VENV)/bin/localspec chat"

real-models: $(INSTALLED)
	$(PYTHON) tools/real_models.py

native: $(COMPILER)
	$(PYTHON) localspec/native/build.py

test: $(COLLECTED) native
	-$(MAKE) real-models # without the model, its tests are skipped
	$(PYTEST)

test-all: $(COLLECTED) native
	-$(MAKE) real-models # without the model, a test fails and says so
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

pictures: $(TESTABLE) native
	$(PYTHON) tools/pictures.py $(PICTURES)

# otherwise glibc returns large buffers to the system after every step, which takes a third of the time
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

# an editable installation follows changed sources; `native` compiles the library meanwhile
$(VENV)/.installed $(VENV)/.testable: export BUILD_NATIVE_FOR := none
$(VENV)/.installed: pyproject.toml constraints.txt hatch_build.py $(VENV)/.compiler
	$(PIP) --no-build-isolation -e .
	touch $@

# compile on every core, where pip uses one; ignore files for another Python, which do not compile
$(VENV)/.compiled: $(VENV)/.installed
	$(VENV)/bin/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true
	touch $@

$(VENV)/.testable: $(VENV)/.installed
	$(PIP) --no-build-isolation -e ".[dev]"
	touch $@

# one process compiles the tests and their imports; otherwise each test process would
$(VENV)/.collected: $(VENV)/.testable
	$(PYTEST) --numprocesses 0 --collect-only --snapshot-warn-unused -q >/dev/null
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	rm -f localspec/native/localspec_native.*
