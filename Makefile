# Everything a newcomer needs: make demo, make test. `make help` lists the rest.

MAKEFLAGS += --no-print-directory

PYTHON ?= python3
TORCH ?= 2.13.0
TORCH_INDEX_URL ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
PYTEST_ARGS ?=
CMAKE_ARGS ?=
ARGS ?=

# An active environment is used unless VENV is given.
export PYTHON TORCH TORCH_INDEX_URL VENV
export CTEST_PARALLEL_LEVEL ?= $(or $(CMAKE_BUILD_PARALLEL_LEVEL),$(shell nproc 2>/dev/null || echo 2))

# A line of shell: py is the environment's Python; its folder comes first on the PATH, for cmake, ninja, ruff from pip.
define environment
py=$$(tools/setup_env.sh $(1)) && PATH=$$(dirname $$py):$$PATH
endef
nox = $(call environment,dev) && $$py -m nox

.PHONY: help demo test test-all bench docs lint format build clean distclean \
        check-peers check-cuda check-sanitizers check-matrix check-wheels check-exhaustive

help:
	@echo "make demo     set up, then the main job on real text: accuracy, time, pictures     DEMO_ARGS=\"--text FILE\""
	@echo "make test     set up, then ctest and pytest: every promise once, in some minutes   PYTEST_ARGS=\"-k add\""
	@echo "make test-all      the same and all the rest"
	@echo "make bench    set up, then the benchmarks                                          BENCH_ARGS=\"--quick\""
	@echo "make docs     the pages and the API reference as a site with a search: build/site/index.html"
	@echo "make lint     ruff, clang-format, mypy, import-linter, checking only; make format applies what it can"
	@echo "make build    set up alone: environment, torch, compiled libraries; make clean removes what was built"
	@echo
	@echo "make check-peers        the encodings against diffusers, transformers, timm and others themselves"
	@echo "make check-cuda         what can be known of the CUDA kernels without a device; needs nvcc   ARGS=\"--arch 90\""
	@echo "make check-sanitizers   C++ and pytest under AddressSanitizer and UBSan, C++ under ThreadSanitizer   ARGS=FILES"
	@echo "make check-matrix       the suite under torch 2.11, 2.13 and the newest     ARGS=--features, for docs/compatibility.md"
	@echo "make check-wheels       source distribution and wheels into dist/, installed and run beside four torches"
	@echo "make check-exhaustive   every float32 entry of d=512, n < 2^20, and more    ARGS=--write"
	@echo
	@echo "PYTHON=$(PYTHON)   the Python that makes the environment"
	@echo "VENV=.venv       where it is made; without VENV an active environment with torch >= 2.11 is used instead"
	@echo "TORCH=$(TORCH)     the torch to install;  TORCH_INDEX_URL=  where from, for instance a CPU-only index"

demo:
	@$(call environment,bench) && exec $$py -m sinpe_ext demo $(DEMO_ARGS)

# What is in which: tests/support/tiers.py. As many workers as cores, each with its share of threads.
PYTEST = -m pytest -n auto --dist worksteal --durations=10
test:
	@$(call environment,test) && $(ctest) && exec $$py $(PYTEST) -m "not long" $(PYTEST_ARGS)

test-all:
	@$(call environment,test) && $(ctest) && exec $$py $(PYTEST) $(PYTEST_ARGS)

# `cmake --workflow --preset default`, with CMAKE_ARGS.
define ctest
{ if [ -z "$$(for name in $${CXX:-c++ g++ clang++}; do command -v $$name; done)" ]; then \
  echo "no C++ compiler: the C++ tests are skipped, and everything runs in eager PyTorch"; else \
  cmake --preset default $(CMAKE_ARGS) && cmake --build --preset default && ctest --preset default; fi; }
endef

bench:
	@$(call environment,bench) && exec $$py -m benchmarks $(BENCH_ARGS)

build:
	@$(call environment) && exec $$py -m sinpe_ext info

# Strict: a link, an anchor or a name that leads nowhere fails. Nothing is downloaded but the packages.
docs:
	@$(call environment,docs) && $$py -m sphinx -q -W --keep-going -d build/doctrees -c docs . build/site && \
	echo "docs: build/site/index.html"

lint:
	@$(call environment,lint) && tools/lint.sh

format:
	@$(call environment,lint) && tools/lint.sh --fix

# The table it prints is also build/peers.md. ARGS="python -m benchmarks" times these libraries beside ours.
check-peers:
	@$(nox) -s peers -- $(ARGS)

# How it is done, what it downloads and how to go without: tools/cuda_check.py, tools/cuda_sass.
check-cuda:
	@$(call environment,test cuda-sass) && $$py tools/cuda_check.py && cd tools && exec $$py -m cuda_sass $(ARGS)

# setarch, where it works: g++'s ThreadSanitizer needs addresses that are not random.
check-sanitizers:
	@$(call environment,test) && cmake --workflow --preset asan && cmake --preset tsan && cmake --build --preset tsan && \
	$$(setarch -R true 2>/dev/null && echo setarch -R) ctest --preset tsan
	@$(nox) -s asan -- $(ARGS)

# All libraries are built before the first suite, which loads those of the others.
check-matrix:
	@$(nox) -s matrix --install-only && $$py -m nox -R -s matrix -- $(ARGS)

check-wheels:
	@$(nox) -s wheels check-wheels installs

check-exhaustive:
	@$(call environment,test) && exec $$py tools/exhaustive.py $(ARGS)

clean:
	rm -rf build dist *.egg-info sinpe_ext/*.so sinpe_ext/_build.json .pytest_cache .hypothesis .mypy_cache .ruff_cache
	rm -f $(if $(VENV),$(VENV),.venv)/.sinpe_ext.built
	find . -path './.*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(if $(VENV),$(VENV),.venv) .nox
