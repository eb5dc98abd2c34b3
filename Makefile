# Everything runs in one virtual environment, created on first use from constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

SEEDS ?= 3

# Tests start hundreds of processes; without cached bytecode each compiles all of holdfast again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all check soak bench clean

demo: $(READY)  ## train with two workers, kill one, and compare the weights
	$(BIN)/holdfast drill digits --faults kill --policies replace

test: $(READY) check  ## that, and every capability once with real processes
	$(BIN)/pytest -m "slow and not full and not soak" -n 3 --dist worksteal

test-all: $(READY) test  ## that, and what is slow or needs more than a container has; CI runs this
	$(BIN)/pytest -m "full and not soak" -n 3 --dist worksteal

check: $(READY)  ## format, lint, types, layers, measures, fast tests; pre-commit runs this
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tests/house.py
	$(BIN)/pytest -m "not slow and not full and not soak" -n 2

soak: $(READY)  ## all cases of the exhaustive tests, and SEEDS long runs with many faults
	{ $(BIN)/python tests/runs/soak.py --seeds $(SEEDS) && \
	  $(BIN)/python tests/runs/corruption.py --runs 10 && \
	  $(BIN)/python tests/runs/moving_soak.py --seeds 1 && \
	  $(BIN)/python -m holdfast_bench.exactness --seeds 60; } & \
	programs=$$!; $(BIN)/pytest -m soak -n 2 --dist worksteal; tests=$$?; \
	wait $$programs && exit $$tests

bench: $(READY)  ## measure everything quickly, and draw the report
	$(BIN)/holdfast bench all --quick --output bench-results
	$(BIN)/holdfast report bench-results

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
