# The most useful targets: make demo, make test. `make help` lists all.

MAKEFLAGS += --no-print-directory

PYTHON ?= python3
TORCH ?=
TORCH_INDEX_URL ?=
ARGS ?=
CMAKE_ARGS ?=

# An active environment is used unless VENV is given.
export PYTHON TORCH TORCH_INDEX_URL VENV
export CTEST_PARALLEL_LEVEL ?= $(or $(CMAKE_BUILD_PARALLEL_LEVEL),$(shell nproc 2>/dev/null || echo 2))

# Shell code that sets the environment up and puts its folder first on the PATH.
define environment
py=$$(tools/setup_env.sh $(1)) && PATH="$${py%/*}:$$PATH"
endef
nox = $(call environment,dev) && python -m nox

.PHONY: help demo test test-all bench docs lint format build clean distclean \
        check-peers check-cuda check-cuda-host check-sanitizers check-matrix check-wheels check-exhaustive

help:
	@echo "make demo     set up, then encode a text: accuracy, times, plots                   ARGS=\"--text FILE\""
	@echo "make test     set up, then ctest and pytest: every guarantee once, in minutes      ARGS=\"-k add\""
	@echo "make test-all all tests"
	@echo "make bench    set up, then the benchmarks                                          ARGS=\"--quick\""
	@echo "make docs     build the site: the pages and the API reference, in build/site/index.html"
	@echo "make lint     ruff, clang-format, clang-tidy, mypy, import-linter; make format applies automatic fixes"
	@echo "make build    set up only: environment, torch, compiled libraries; make clean removes build outputs"
	@echo
	@echo "make check-peers        compare the encodings with diffusers, transformers, timm and other libraries"
	@echo "make check-cuda         compile, link and load the CUDA library without a device; needs nvcc   ARGS=\"--arch 9.0\""
	@echo "make check-cuda-host    the tests of CUDA with a CUDA build of torch, on host memory in place of a device"
	@echo "make check-sanitizers   C++ and pytest under AddressSanitizer and UBSan, C++ under ThreadSanitizer   ARGS=FILES"
	@echo "make check-matrix       the tests under torch 2.11, 2.13 and the newest"
	@echo "make check-wheels       build the source distribution and wheels in dist/, and install them"
	@echo "make check-exhaustive   check every float32 entry below position 2^20, dim 512, and more   ARGS=--write"
	@echo
	@echo "PYTHON=$(PYTHON)   the Python that creates the environment"
	@echo "VENV=.venv       its folder; without VENV an active environment with torch >= 2.11 is used instead"
	@echo "TORCH=VERSION    the torch version to install;  TORCH_INDEX_URL=URL   its package index, for instance a CPU-only one"

demo:
	@$(call environment,bench) && exec python -m sinpe_ext demo $(ARGS)

# tests/support/tiers.py says which tests belong to which target. One worker per core; the workers share the threads.
PYTEST = -m pytest -n auto --dist worksteal --durations=10
test:
	@$(call environment,test) && $(ctest) && exec python $(PYTEST) -m "not long" $(ARGS)

test-all:
	@$(call environment,test) && $(ctest) && exec python $(PYTEST) $(ARGS)

# Equivalent to `cmake --workflow --preset default`, with CMAKE_ARGS.
define ctest
{ if [ -z "$$(for name in $${CXX:-c++ g++ clang++}; do command -v $$name; done)" ]; then \
  echo "no C++ compiler: the C++ tests are skipped, and everything runs in eager PyTorch"; else \
  cmake --preset default $(CMAKE_ARGS) && cmake --build --preset default && ctest --preset default; fi; }
endef

bench:
	@$(call environment,bench) && exec python -m benchmarks $(ARGS)

build:
	@$(call environment) && exec python -m sinpe_ext info

# Broken links and anchors are errors. Only the packages are downloaded.
docs:
	@$(call environment,docs) && python -m sphinx -q -W --keep-going -d build/doctrees -c docs . build/site && \
	echo "docs: build/site/index.html"

lint:
	@$(call environment,lint) && tools/lint.sh

format:
	@$(call environment,lint) && tools/lint.sh --fix

# Also writes the printed table to build/peers.md. `nox -s bench` times these libraries.
check-peers:
	@$(nox) -s peers -- $(ARGS)

check-cuda:
	@$(call environment,test) && exec python tools/check_cuda.py $(ARGS)

# Downloads a CUDA build of torch (gigabytes) into an environment of its own.
check-cuda-host:
	@$(nox) -s cuda-on-host -- $(or $(ARGS),tests)

check-sanitizers:
	@$(call environment,test) && cmake --workflow --preset asan && cmake --workflow --preset tsan
	@$(nox) -s asan -- $(ARGS)

# All libraries are built before the first test run, because each run also loads the libraries built for the other versions.
check-matrix:
	@$(nox) -s matrix --install-only && python -m nox -R -s matrix -- $(ARGS)

check-wheels:
	@$(nox) -s wheels wheel-smoke installs

check-exhaustive:
	@$(call environment,test) && exec python tools/exhaustive.py $(ARGS)

clean:
	rm -rf build dist *.egg-info sinpe_ext/*.so sinpe_ext/_build.json .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -path './.*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf "$(or $(VENV),.venv)" .nox
