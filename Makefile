# Everything runs in one virtual environment, created on first use from constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

SEEDS ?= 5

# Tests start hundreds of processes; without cached bytecode each compiles all of holdfast again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check soak bench clean

demo: $(READY)  ## train with two workers, kill one, and compare the weights
	$(BIN)/holdfast drill digits --faults kill --policies replace

test: $(READY) check  ## all checks and tests, except the many cases of `soak`
	$(BIN)/pytest -m "slow and not soak" -n 3 --dist worksteal

check: $(READY)  ## format, lint, types, layers, fast tests; CI and pre-commit run this
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -m "not slow and not soak" -n 2

soak: $(READY)  ## all cases of the exhaustive tests, and SEEDS long runs with many faults
	$(BIN)/pytest -m soak -n 3 --dist worksteal
	$(BIN)/python tests/runs/soak.py --seeds $(SEEDS)
	$(BIN)/python tests/runs/corruption.py --runs 20
	$(BIN)/python -m holdfast_bench.exactness --seeds 100

bench: $(READY)  ## measure everything quickly, and draw the report
	$(BIN)/holdfast bench all --quick --output bench-results
	$(BIN)/holdfast report bench-results

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
