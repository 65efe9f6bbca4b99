# make bench    measure this machine                       make check    lint, types, version
# make test     what to run before a commit, 10 minutes    make format   format sources with ruff
# make test-slow  the rest of what CI runs: every engine, kill and resume, browsers, Slurm, the wheel
# make soak     long tests: repeated kill and resume, memory over 100,000 batches
# make mutants  mutation tests: exit code 1 if the unit tests catch fewer mutants than recorded
# make interop  data formats against the real TensorFlow, MXNet and DALI (5 GB in .interop)
#
# Each target creates or updates the virtual environment .venv if needed. Variables:
#   PYTHON=python3.12         another interpreter (3.11 or later)
#   TORCH="torch==2.15.0"     another torch build: a pip requirement or the path of a wheel; PIP_INDEX_URL selects
#                             the package index
#   ARGS="--seconds 30"       arguments of `trainstone bench`

PYTHON ?= python3
TORCH ?= $(shell grep '^torch==' constraints.txt)
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
KEY := $(shell printf '%s' '$(PYTHON) $(TORCH)' | cksum | cut -d' ' -f1)
RUN_READY := $(VENV)/.ready-run-$(KEY)
DEV_READY := $(VENV)/.ready-dev-$(KEY)
TYPED := src/trainstone/errors.py src/trainstone/files.py src/trainstone/log.py src/trainstone/text.py src/trainstone/units.py $(addprefix src/trainstone/,cli launch report data trace results stats config machine formats)

.PHONY: bench test test-slow soak mutants interop check reference format clean
.DEFAULT_GOAL := bench

bench: $(RUN_READY)
	$(BIN)/trainstone bench $(ARGS)

# Tests that measure time are marked `serial`: they run in one process after the others. Files run in order: the long
# integration tests first, then the short unit tests.
PARALLEL := OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests --numprocesses auto --maxprocesses 4 \
	--dist loadfile --no-loadscope-reorder

test: check
	scripts/install-system-packages tests/system-packages.txt
	$(PARALLEL) -m 'not slow and not serial'
	$(BIN)/python -m pytest tests -m 'serial and not slow'

test-slow: $(DEV_READY)
	scripts/install-system-packages tests/system-packages.txt
	$(PARALLEL) -m 'slow and not serial'
	$(BIN)/python -m pytest tests -m 'slow and serial'
	scripts/test-wheel $(BIN)/python '$(TORCH)'

soak: $(DEV_READY)
	TRAINSTONE_SOAK=1 $(BIN)/python -m pytest tests/soak

mutants: $(DEV_READY)
	$(BIN)/python tests/mutants/run.py

interop: $(DEV_READY)
	scripts/make-interop '$(PYTHON)'
	$(BIN)/python -m pytest tests/interop

check: $(DEV_READY)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy $(TYPED)
	$(BIN)/python scripts/check-version

reference: $(DEV_READY)
	$(BIN)/python scripts/make-reference

format: $(DEV_READY)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf $(VENV) .interop build dist .mypy_cache .ruff_cache .pytest_cache

$(RUN_READY): pyproject.toml constraints.txt scripts/make-venv
	rm -f $(VENV)/.ready-*
	scripts/make-venv '$(PYTHON)' $(VENV) '$(TORCH)' --editable .
	touch $@

$(DEV_READY): pyproject.toml constraints.txt scripts/make-venv
	rm -f $(VENV)/.ready-*
	scripts/make-venv '$(PYTHON)' $(VENV) '$(TORCH)' --editable '.[dev]'
	touch $@ $(RUN_READY)
