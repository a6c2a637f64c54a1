PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: test test-fast test-gpu test-cards test-triton demo lint types pytest tables format clean

# What takes one core runs beside pytest.
test: lint
	$(MAKE) --no-print-directory --jobs 2 types pytest

# A selection for every save: no slow tests, nothing that needs a GPU.
test-fast: $(STAMP)
	$(BIN)/pytest -n auto --dist loadgroup -m "not slow and not gpu"

# The whole suite on a machine with a GPU, which runs the kernels instead of the interpreter.
test-gpu: $(STAMP)
	$(BIN)/pytest -n 8 --dist loadgroup

# Every kernel with every dtype and width for every GPU, compiled without one; `make test-triton` compiles a selection.
test-cards: $(STAMP)
	$(BIN)/python tests/ops/compiling.py --all --jobs $$(nproc) 80 86 89 90 100 120 > /dev/null

# Every kernel, compiled without a GPU: for all of them with the newest Triton, and with the oldest that is supported,
# which takes less of Python. 8.9 has the instructions and the shared memory of 8.6.
OLDEST := 3.6.0
test-triton: $(STAMP)
	$(BIN)/python tests/ops/compiling.py --jobs $$(nproc) 80 86 90 100 120 > /dev/null
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/triton triton==$(OLDEST)
	PYTHONPATH=$(VENV)/triton:src $(BIN)/python tests/ops/compiling.py --jobs $$(nproc) 90 > /dev/null

# Threads that wait for each other by spinning would take the time of other programs, and of each other.
demo: $(STAMP)
	GOMP_SPINCOUNT=10000 $(BIN)/sightline predict src/sightline/explorer/samples --top 3 --attention runs/demo
	GOMP_SPINCOUNT=10000 $(BIN)/sightline train

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy
	$(BIN)/python tools/make_tables.py --check

pytest: $(STAMP)
	$(BIN)/pytest -n auto --dist loadgroup

tables: $(STAMP)
	$(BIN)/python tools/make_tables.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml
	@echo "Creating $(VENV) and installing torch and the rest: minutes, once, depending on the network."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV)
