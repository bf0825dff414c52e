# Each target sets up what it needs: on a fresh machine `make run` or `make test` is the only command.
PYTHON ?= python3
VENV ?= .venv
# A package index with a CPU wheel of torch, where the usual one has only a CUDA build:
#   make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# Test processes. Each may start ranks of its own.
JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install -q --root-user-action=ignore -c constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
BUILD_TOOLS := cmake hatchling ninja pybind11 scikit-build-core
NATIVE := $(wildcard native/CMakeLists.txt native/include/shardlab/*.h native/src/*/*.cpp native/src/*/*.cu native/src/bindings/_build.py.in)
PROJECTS := pyproject.toml $(wildcard packages/*/pyproject.toml native/pyproject.toml simulator/pyproject.toml)

# Ranks share the cores: one thread each, and a waiting rank leaves the core to the others.
export OMP_NUM_THREADS ?= 1
export MPIR_CVAR_ENABLE_HEAVY_YIELD ?= 1

.PHONY: setup native run lint test test-slow wheels clean

setup: $(VENV)/.done

# Without build isolation, so that the constraints hold for the build tools too and a rebuild is incremental.
$(VENV)/.done: $(PROJECTS) constraints.txt CMakeLists.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed: make setup PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) $(BUILD_TOOLS)
	$(INSTALL) --no-build-isolation -e '.[dev]'
	touch $@

native: $(VENV)/.done
	$(PIP) install --root-user-action=ignore --no-build-isolation --no-deps -v -e .

run: setup
	PATH="$(abspath $(BIN)):$$PATH" bash examples/run.sh

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile

test-slow: setup
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -q -m slow

# One wheel per package; `pip install --find-links dist shardlab-zero` then finds its siblings.
wheels: setup
	$(PIP) wheel -q --no-build-isolation --no-deps -w dist $(dir $(wildcard ./packages/*/pyproject.toml)) ./native ./simulator

clean:
	rm -rf build dist native/build $(VENV)/.done
