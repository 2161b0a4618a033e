# `make demo` and `make test` set everything up in .venv; nothing else is touched.
PYTHON ?= python3
# Any torch >= 2.6 will do; pinned so that two people see the same numbers.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find csrc kernels -type f) CMakeLists.txt pyproject.toml

.PHONY: demo test lint bench wheel clean

demo: $(VENV)/.installed
	$(BIN)/oasis demo

test: $(VENV)/.installed lint
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(VENV)/.installed
	$(BIN)/python -m bench

wheel: $(VENV)/.installed
	$(BIN)/python -m pip wheel --no-deps --wheel-dir dist .

$(VENV)/.torch:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "oasis needs Python >= 3.10")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install '$(TORCH)'
	touch $@

$(VENV)/.installed: $(VENV)/.torch $(SOURCES)
	$(BIN)/python -m pip install --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build dist
