# `make quickstart`, `make lab`, `make test`, `make bench`: each sets up what it needs.
# Everything is installed into .venv and node_modules; Debian packages only where you are root.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FRONTEND := rlm_notebook/frontend
NODE_STAMP := $(FRONTEND)/node_modules/.package-lock.json
NOTEBOOKS := $(wildcard notebooks/*.ipynb)

.PHONY: quickstart lab test lint python-tests notebook-tests browser-tests frontend frontend-tests bench torture test-llm screenshots debian clean

quickstart: $(VENV)/.lab
	$(BIN)/python notebooks/run.py notebooks/01_quickstart.ipynb build/quickstart

lab: $(VENV)/.lab
	$(BIN)/jupyter lab --ip 127.0.0.1 $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/01_quickstart.ipynb

# The parts are independent of each other, so they run side by side.
test: $(VENV)/.test debian $(NODE_STAMP)
	$(MAKE) --no-print-directory --output-sync=target -j 2 lint frontend-tests python-tests notebook-tests browser-tests

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

python-tests: $(VENV)/.test
	$(BIN)/pytest -q -n 2 -m "not browser" tests

browser-tests: $(VENV)/.test debian
	$(BIN)/pytest -q -m browser tests

notebook-tests: $(VENV)/.test
	rm -rf build/notebook-traces
	RLM_TRACE_DIR=$(CURDIR)/build/notebook-traces $(BIN)/pytest -q -p no:cacheprovider --nbval-lax --rootdir . $(NOTEBOOKS)
	$(BIN)/python -m tests.replay_all build/notebook-traces

frontend-tests: $(NODE_STAMP)
	cd $(FRONTEND) && npm run --silent check && npm test --silent && npm run --silent fresh

# Builds the committed bundle from the sources.
frontend: $(NODE_STAMP)
	cd $(FRONTEND) && npm run --silent build

bench: $(VENV)/.test debian
	$(BIN)/python -m tests.benchmarks.bench build/bench.json

# The tests of loss, with more moments at which a run is killed and more files that are damaged.
torture: $(VENV)/.test
	RLM_TEST_KILLS=200 RLM_TEST_FUZZ=100000 $(BIN)/pytest -q -n 2 --timeout 3600 \
	  tests/test_killed.py tests/trace/test_strangers.py

# Optional: a real small model on this machine. Builds llama.cpp, which takes some minutes.
test-llm: .cache/llm-venv/.done
	.cache/llm-venv/bin/python -m tests.llm.run

.cache/llm-venv/.done: pyproject.toml
	$(PYTHON) -m venv .cache/llm-venv
	CMAKE_ARGS="-DGGML_NATIVE=OFF" .cache/llm-venv/bin/python -m pip install --quiet --editable ".[llm]"
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(VENV)/.lab: $(VENV)/bin/python pyproject.toml
	$(BIN)/pip install --quiet --editable ".[lab]"
	touch $@

$(VENV)/.test: $(VENV)/bin/python pyproject.toml
	$(BIN)/pip install --quiet --editable ".[test]"
	touch $@ $(VENV)/.lab

$(NODE_STAMP): $(FRONTEND)/package-lock.json | debian
	cd $(FRONTEND) && npm ci --silent
	touch $@

# A browser for the tests, and node for the front end.
debian:
	@for program in chromium node npm; do \
	  command -v $$program >/dev/null && continue; \
	  if [ "$$(id -u)" != 0 ]; then echo "make: $$program is missing: install it"; exit 1; fi; \
	  package=$$program; [ $$program = node ] && package=nodejs; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$package >/dev/null || exit 1; \
	done

# The pictures of README, taken anew.
screenshots: $(VENV)/.test debian
	$(BIN)/python -m tests.browser.screenshots docs

clean:
	rm -rf build $(VENV) $(FRONTEND)/node_modules .cache .pytest_cache .mypy_cache .ruff_cache
