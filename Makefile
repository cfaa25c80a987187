# `make train` and `make test` do everything, from a machine with Python 3.11, make and git.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed

# One thread per test process: the processes share the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist worksteal

.PHONY: train test test-long test-slurm format clean

# Trains the quickstart model; giving the command again continues it.
train: $(INSTALLED)
	$(BIN)/python train.py

# Lint, format check, and every test but the long ones: minutes.
test: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(PYTEST) -m "not long and not slurm"

# The large cases: kernels interpreted over a grid, more GPUs compiled for, processes killed.
test-long: $(INSTALLED)
	$(PYTEST) -m long

# Jobs on a SLURM of two nodes that the tests start themselves, from Debian's packages, as root.
test-slurm: $(INSTALLED)
	$(BIN)/python -m pytest -q -rs -m slurm tests/slurm

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Without --no-compile, byte code of modules that are never imported doubles the time.
$(INSTALLED): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: $(PYTHON) is too old: Braid needs Python 3.11 or newer; make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -r requirements.lock
	touch $(INSTALLED)

# Removes the environment; runs/ and prepared/ stay.
clean:
	rm -rf .venv .pytest_cache .ruff_cache
