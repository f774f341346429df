# Everything sets itself up in .venv. Needs Python 3.11 or newer, make, and a package index that pip knows.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := $(shell find engine host scripts -type f -not -name '*.pyc')

.PHONY: demo test test-agents check format lock bench fuzz clean

demo: .venv/.package
	$(BIN)/loopwarden demo

# Tests of Postgres take the server that LOOPWARDEN_TEST_POSTGRES names (a URL), else one that comes as a wheel.
test: .venv/.package
	$(BIN)/python -m pytest -n auto

# The real agent programs, installed into .agents/ with the Node of the development tools: make test-agents AGENTS=claude
AGENTS ?= claude codex opencode qwen gemini
test-agents: .venv/.package
	PYTHONPATH=tests $(BIN)/python -m agents.install $(AGENTS)
	$(BIN)/python -m pytest -n 2 --timeout 180 tests/agents --agents "$(AGENTS)"

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

# After a shipped loop or the language policy changed, and somebody looked at what changed.
lock: .venv/.package
	$(BIN)/loopwarden approve $(wildcard scripts/loopwarden_scripts/*/loop.py) --by "the Loopwarden authors" \
		--lock scripts/loopwarden_scripts/loopwarden.lock

# Hostile workers against a host, without end: stop it with Ctrl-C, or FUZZ_SECONDS=60 make fuzz. A failure says its seed.
fuzz: .venv/.package
	PYTHONPATH=tests $(BIN)/python -m support.frame_fuzzer $(if $(FUZZ_SECONDS),--seconds $(FUZZ_SECONDS)) \
		$(if $(FUZZ_SEED),--seed $(FUZZ_SEED))

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
