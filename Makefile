# Targets for people and for .ci/run. They use the README's virtual environment and make it if needed.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
SOURCES := lockstep tests benchmarks

.PHONY: check format test test-slow test-all clean

$(VENV)/.dev-installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e '.[test,dev]'
	touch $@

check: $(VENV)/.dev-installed
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

format: $(VENV)/.dev-installed
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

test: $(VENV)/.dev-installed
	$(BIN)/python -m pytest -m 'not slow'

test-slow: $(VENV)/.dev-installed
	$(BIN)/python -m pytest -m slow

test-all: $(VENV)/.dev-installed
	$(BIN)/python -m pytest

clean:
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache *.egg-info
