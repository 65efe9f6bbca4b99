# make bench    measure this machine                       make check    lint, types, version
# make test     what to run before a commit, 10 minutes    make format   rewrite sources in the house style
# make test-slow  the rest of what CI runs: every engine, kill and resume, browsers, Slurm, the wheel
# make soak     trials that take long: memory over 100,000 batches
# make mutants  seeded defects, one at a time: exit code 1 if unit tests catch fewer than recorded
# make interop  data formats against the real TensorFlow, MXNet and DALI (5 GB in .interop)
#
# Each makes the virtual environment .venv when it is missing or stale. Variables:
#   PYTHON=python3.12         another interpreter (3.11 or later)
#   TORCH="torch==2.15.0"     another torch build: any pip requirement, or the path of a wheel; which index it
#                             comes from is pip's own setting (PIP_INDEX_URL)
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

.PHONY: bench test test-slow soak mutants interop check format clean
.DEFAULT_GOAL := bench

bench: $(RUN_READY)
	$(BIN)/trainstone bench $(ARGS)

# Tests that measure time are marked `serial`: they run alone, after the others. Files are taken in their order:
# the long ones, of integration, before the short ones, of unit.
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
