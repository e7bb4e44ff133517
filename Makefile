# Two commands, each complete on a fresh machine with Python 3.11 or newer and make:
#   make demo    create the environment, build the small base model, train it, show the result
#   make test    create the environment, run the whole check: format, lint, types, tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The tests are many small models: two processes of one thread each beat one of two threads.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: demo test test-all check mutate lock clean help

help:
	@sed -n 's/^# *make/make/p' Makefile
	@echo "make test-all    also the slow tests and those with real components"
	@echo "make mutate      break every line of the pure layer; each break must fail a test"
	@echo "make lock        write the present versions of all packages into requirements.lock"

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $(READY)

demo: $(READY)
	$(BIN)/markbook demo

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	cd tools && ../$(BIN)/mypy --config-file ../pyproject.toml mutate.py
	cd experiments && ../$(BIN)/mypy --config-file ../pyproject.toml demo/run.py
	cd experiments && ../$(BIN)/mypy --config-file ../pyproject.toml smollm2/run.py

test: check
	$(PYTEST) -m "not slow and not real"

test-all: check
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[trackers]"
	$(PYTEST)

mutate: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tools/mutate.py

lock: $(READY)
	$(BIN)/python -m pip freeze --exclude-editable --local | sed 's/+cpu//' > requirements.lock.new
	mv requirements.lock.new requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
