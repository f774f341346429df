# Everything sets itself up in .venv. Needs Python 3.11 or newer, make, and a package index that pip knows.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := $(shell find engine host scripts -type f -not -name '*.pyc')

.PHONY: demo test check format bench clean

demo: .venv/.package
	$(BIN)/loopwarden demo

test: .venv/.package
	$(BIN)/python -m pytest -n auto

check: .venv/.package
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: .venv/.tools
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.package
	$(BIN)/python tests/bench/bench.py

clean:
	rm -rf .venv dist build

# The package is installed as a wheel, not as a link to this tree: what is tested is what users get.
.venv/.package: .venv/.tools $(SOURCES) README.md LICENSE
	$(BIN)/python -m pip install --quiet --no-deps --force-reinstall .
	touch $@

.venv/.tools: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --group dev .
	touch $@
