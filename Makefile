# Everything runs in one virtual environment, made on first use from constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

SEEDS ?= 5

.PHONY: demo test check soak bench clean

demo: $(READY)  ## train the digits with two workers, lose one on purpose, and compare the weights
	$(BIN)/holdfast drill digits --faults kill --policies replace

test: $(READY) check  ## lint, types, layers, and all tests but the many cases of `soak`
	$(BIN)/pytest -m "slow and not soak" -n 3 --dist worksteal

check: $(READY)  ## what CI and pre-commit run first: format, lint, types, layers, fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -m "not slow and not soak"

soak: $(READY)  ## every case of the exhaustive tests, and SEEDS long runs with many faults
	$(BIN)/pytest -m soak -n 3 --dist worksteal
	$(BIN)/python tests/runs/soak.py --seeds $(SEEDS)
	$(BIN)/python tests/runs/corruption.py --runs 20
	$(BIN)/python -m holdfast.testing.exactness --seeds 100

bench: $(READY)  ## measure, and print medians and spreads
	$(BIN)/holdfast bench wake
	$(BIN)/holdfast bench startup
	$(BIN)/holdfast bench recovery
	$(BIN)/holdfast bench restart
	$(BIN)/holdfast bench scaling
	$(BIN)/holdfast bench overhead

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
