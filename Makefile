# The most useful targets: make demo, make test. `make help` lists all; the text after ## is theirs.

MAKEFLAGS += --no-print-directory
.NOTPARALLEL: # two commands must not install at the same time

PYTHON ?= python3
CMAKE_ARGS ?=
export CTEST_PARALLEL_LEVEL ?= $(or $(CMAKE_BUILD_PARALLEL_LEVEL),$(shell nproc 2>/dev/null || echo 2))

.PHONY: help demo test test-all cpp bench docs lint format build environment clean distclean \
        check-peers check-cuda check-cuda-host check-sanitizers check-matrix check-wheels check-exhaustive

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 23
	@echo
	@echo "PYTHON=$(PYTHON)   the Python that creates the environment"
	@echo "VENV=.venv       its folder; an active environment is not used or changed, unless VENV names it"
	@echo "TORCH=VERSION    the torch version to install;  TORCH_INDEX_URL=URL   its package index, for instance a CPU-only one"

# ---------------------------------------------------------------------------------------------------- the environment

TORCH ?= $(shell sed -n 's/^requires = .*"torch==\([^"]*\)".*/\1/p' pyproject.toml)# as in an isolated build
ENV := $(or $(VENV),.venv)
PY := $(ENV)/bin/python
export PATH := $(abspath $(ENV)/bin):$(PATH)
export VIRTUAL_ENV := $(abspath $(ENV))# in place of an active one, where CMake would look for Python

# A stamp is a file in the environment that says what was done there for this checkout.
STAMP := $(ENV)/.sinpe_ext-$(word 1,$(shell pwd | cksum))
LOG = build/setup.log
# $(call quietly,WHAT,COMMAND): runs a command with its output in a file; if it fails, prints one line with the reason.
define quietly
@mkdir -p build; echo "setup: $(1)" >&2; { $(2); } >$(LOG) 2>&1 || { \
  echo "setup: failed: $(1): $$(grep -m1 -E '^ *(ERROR|error):' $(LOG) || tail -n 1 $(LOG)) (network? all of it: $(LOG))" >&2; exit 1; }
endef
PIP := $(PY) -m pip --disable-pip-version-check install

$(PY):
	@command -v $(PYTHON) >/dev/null && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	{ echo "setup: $(PYTHON): expected Python 3.10 or newer; install it, or say make PYTHON=..." >&2; exit 1; }
	$(call quietly,making the environment $(ENV) (Debian and Ubuntu: apt install python3-venv),$(PYTHON) -m venv $(ENV) || { rm -rf $(ENV); false; })

$(STAMP)-torch-$(TORCH): | $(PY)
	$(call quietly,installing torch $(TORCH),$(PIP) torch==$(TORCH) $(addprefix --index-url ,$(TORCH_INDEX_URL)))
	@rm -f $(STAMP)-torch-*; touch $@

# The library is built anew only when what it is made of has changed, or `make clean` has removed it.
BUILT = $(STAMP)-build-$(SINPE_EXT_BUILD)
ifeq ($(wildcard sinpe_ext/_build.json),)
$(shell rm -f $(STAMP)-build-*)
endif
$(BUILT): $(STAMP)-torch-$(TORCH) $(shell find csrc) pyproject.toml setup.py sinpe_ext/backend/sources.py sinpe_ext/_version.py
	$(call quietly,installing the build tools,$(PIP) "setuptools>=77" "pybind11>=2.13" ninja numpy)
	$(call quietly,building and installing sinpe_ext (editable),$(PIP) --no-build-isolation --no-deps -e .)
	@sed -n 's/^ *"reason": "\(.*\)".*/setup: no compiled library: \1/p' sinpe_ext/_build.json >&2; touch $@

# What an extra of pyproject.toml needs.
$(STAMP)-extra-%: pyproject.toml | $(BUILT)
	$(call quietly,installing what [$*] needs and this environment lacks,$(PIP) "sinpe-ext[$*]")
	@touch $@
.SECONDARY:
extra = $(STAMP)-extra-$(1)

# ------------------------------------------------------------------------------------------------------- what it is for

demo: $(call extra,bench) ## set up, then encode a text: accuracy, times, plots                   ARGS="--text FILE"
	@exec python -m sinpe_ext demo $(ARGS)

# tests/support/tiers.py says which tests belong to which target. One worker per core; the workers share the threads.
PYTEST = python -m pytest -n auto --dist worksteal --durations=10
test: cpp ## set up, then ctest and pytest: every guarantee once, in minutes      ARGS="-k add"
	@exec $(PYTEST) -m "not long" $(ARGS)

test-all: cpp ## all tests
	@exec $(PYTEST) $(ARGS)

ctest = cmake --preset $(1) $(CMAKE_ARGS) && cmake --build --preset $(1) && ctest --preset $(1)
cpp: $(call extra,test) ## the C++ tests                                   PRESET=asan|tsan-threads|arm64-core
	@if command -v $${CXX:-c++} >/dev/null; then $(call ctest,$(or $(PRESET),test)); else \
	echo "no C++ compiler: the C++ tests are skipped, and everything runs in eager PyTorch"; fi

bench: $(call extra,bench) ## set up, then the benchmarks                                          ARGS="--quick"
	@exec python -m benchmarks $(ARGS)

# Broken links and anchors are errors. Only the packages are downloaded.
docs: $(call extra,docs) ## build the site: the pages and the API reference, in build/site/index.html
	@python -m sphinx -q -W --keep-going -d build/doctrees -c docs . build/site && echo "docs: build/site/index.html"

lint: $(call extra,lint) ## ruff, clang-format, clang-tidy, mypy, import-linter
	@tools/lint.sh

format: $(call extra,lint) ## apply the automatic fixes of lint
	@tools/lint.sh --fix

build: $(BUILT) ## set up only: environment, torch, compiled libraries
	@exec python -m sinpe_ext info

environment: $(call extra,test) $(call extra,lint) $(call extra,docs) ## set up all of that, and print the path of its Python
	@echo $(abspath $(PY))

check-peers: $(call extra,dev) ## compare the encodings with diffusers, transformers, timm and other libraries
	@python -m nox -s peers -- $(ARGS)

check-cuda: $(call extra,test) ## compile, link and load the CUDA library without a device; needs nvcc   ARGS="--arch 9.0"
	@exec python tools/check_cuda.py $(ARGS)

# Downloads a CUDA build of torch (gigabytes) into an environment of its own.
check-cuda-host: $(call extra,dev) ## the tests of CUDA with a CUDA build of torch, on host memory in place of a device
	@python -m nox -s cuda-on-host -- $(or $(ARGS),tests)

check-sanitizers: $(call extra,dev) ## C++ and pytest under AddressSanitizer and UBSan, threads under TSan   ARGS=FILES
	@$(MAKE) cpp PRESET=asan && $(MAKE) cpp PRESET=tsan-threads && python -m nox -s asan -- $(ARGS)

# All libraries are built before the first test run, because each run also loads the libraries built for the other versions.
check-matrix: $(call extra,dev) ## the tests under torch 2.11, 2.13 and the newest
	@python -m nox -s matrix --install-only && python -m nox -R -s matrix -- $(ARGS)

check-wheels: $(call extra,dev) ## build the source distribution and wheels in dist/, and install them
	@python -m nox -s wheels

check-exhaustive: $(call extra,test) ## check every float32 entry below position 2^20, dim 512, and more   ARGS=--write
	@exec python tools/exhaustive.py $(ARGS)

clean: ## remove build outputs; make distclean: the environments, too
	rm -rf build dist *.egg-info sinpe_ext/*.so sinpe_ext/_build.json .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -path './.*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf "$(or $(VENV),.venv)" .nox
