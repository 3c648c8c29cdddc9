# Everything a newcomer needs: make demo, make test. `make help` lists the rest.

MAKEFLAGS += --no-print-directory

PYTHON ?= python3
TORCH ?= 2.13.0
TORCH_INDEX_URL ?=
CXX_STANDARD ?= 17
BUILD ?= build/cmake
CMAKE_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
TRAIN_ARGS ?=
PYTEST_ARGS ?=
EXHAUSTIVE_ARGS ?=
TSAN_ARGS ?=
MATRIX_ARGS ?=
FAULTS_ARGS ?=
ASAN_ARGS ?=
ARM64_ARGS ?=
SASS_ARGS ?=
FUZZ_MINUTES ?= 60
FUZZ_ARGS ?=
WHEEL_ARGS ?=
JOBS ?= 0

# An active environment is used unless VENV is given.
export PYTHON TORCH TORCH_INDEX_URL VENV

# A line of shell: py is the environment's Python; its folder comes first on the PATH, for cmake, ninja, ruff from pip.
define environment
py=$$(tools/setup_env.sh $(1)) && PATH=$$(dirname $$py):$$PATH
endef

# A session of noxfile.py.
nox = $(call environment,dev) && $$py -m nox

.PHONY: help demo test test-all test-long train-distributed test-peers compatibility test-matrix bench bench-peers train build cpp arm64 asan asan-cpp tsan exhaustive fuzz bad-input faults cuda-check cuda-sass wheels check-wheels record lint format clean distclean

help:
	@echo "make demo    set up, then the main job on real text: accuracy, time, pictures   DEMO_ARGS=\"--text FILE\""
	@echo "make test    set up, then ctest and pytest: every promise once, in some minutes  PYTEST_ARGS=\"-k add\""
	@echo "make test-all   the same and all the rest; make test-long is the rest alone"
	@echo "make test-peers   the encodings against diffusers, transformers, timm and others themselves, which it installs, and examples in them"
	@echo "make compatibility   the tests of features under torch 2.11, 2.13 and the newest, which it installs: docs/compatibility.md"
	@echo "make test-matrix   the whole suite under the same versions, and the library of each in the others   MATRIX_ARGS=--lf"
	@echo "make bench   set up, then the benchmarks                                        BENCH_ARGS="
	@echo "make bench-peers   the same with the libraries of make test-peers beside ours"
	@echo "make train   set up, then a small language model with these layers and with torch's   TRAIN_ARGS=\"--steps 1000\""
	@echo "make train-distributed   the same loss from one process and from FSDP2 + sequence parallel   RANKS=4"
	@echo "make build   set up alone: environment, torch, compiled libraries"
	@echo "make cpp     the C++ library and its tests, without Python or torch             CXX_STANDARD=20 CMAKE_ARGS="
	@echo "make arm64   the C++ library for arm64 and its tests under qemu-user; skipped without them   ARM64_ARGS=--core CXX="
	@echo "make asan    these, then pytest, under AddressSanitizer and UBSan, CUDA kernels as plain C++ among them   ASAN_ARGS=\"--jobs 4\""
	@echo "make asan-cpp   the C++ tests alone"
	@echo "make tsan    the C++ tests under ThreadSanitizer, with std::thread                TSAN_ARGS=--core"
	@echo "make exhaustive   every float32 entry of d=512, n < 2^20, and more, against double-doubles   EXHAUSTIVE_ARGS=--write"
	@echo "make cuda-check   what can be known of the CUDA library without a device; needs nvcc    CUDA_TORCH_WHEEL=FILE"
	@echo "make cuda-sass   runs the kernels' machine code here: the same bits? how many instructions? needs nvcc   SASS_ARGS=\"--arch 90\""
	@echo "make fuzz    property-based tests with new examples for FUZZ_MINUTES=60, in JOBS processes; Ctrl-C ends it   FUZZ_ARGS="
	@echo "make bad-input   the tests of the bad-input catalogue alone, docs/reliability.md"
	@echo "make faults   which tests find each of the hand-made faults in tests/faults            FAULTS_ARGS=\"--quick 07\""
	@echo "make record OF=\"asan\"   runs such a command and keeps what it found in docs/reliability.md"
	@echo "make wheels  the source distribution, the pure and the CPU wheel in dist/         WHEEL_ARGS=none"
	@echo "make check-wheels   these in clean environments of torch 2.11, 2.13, the newest and 2.6"
	@echo "make lint    ruff, clang-format, mypy, import-linter and the records, checking only; make format applies what it can"
	@echo "make clean   remove what was built; make distclean removes .venv as well"
	@echo
	@echo "PYTHON=$(PYTHON)    the Python that makes the environment"
	@echo "VENV=.venv        where it is made; without VENV an active environment with torch >= 2.11 is used instead"
	@echo "TORCH=$(TORCH)      the torch to install;  TORCH_INDEX_URL=  where from, for instance a CPU-only index"
	@echo "Without a C++ compiler everything runs in eager PyTorch, and says so."

demo:
	@$(call environment,bench) && exec $$py -m sinpe_ext demo $(DEMO_ARGS)

# What is in which: tests/support/tiers.py. As many workers as cores, each with its share of threads.
PYTEST = -m pytest -n auto --dist worksteal --durations=10
test:
	@$(call environment,test) && $(MAKE) cpp && exec $$py $(PYTEST) -m "not long" $(PYTEST_ARGS)

test-all:
	@$(call environment,test) && $(MAKE) cpp && exec $$py $(PYTEST) $(PYTEST_ARGS)

test-long:
	@$(call environment,test) && exec $$py $(PYTEST) -m long $(PYTEST_ARGS)

# The table it prints is also build/peers.md.
test-peers:
	@$(nox) -s peers

# All libraries are built before the first suite, which loads those of the others.
compatibility:
	@$(nox) -s matrix --install-only && $$py -m nox -R -s matrix -- --features

test-matrix:
	@$(nox) -s matrix --install-only && $$py -m nox -R -s matrix -- $(MATRIX_ARGS)

bench:
	@$(call environment,bench) && exec $$py -m benchmarks $(BENCH_ARGS)

bench-peers:
	@$(nox) -s peers -- python -m benchmarks $(BENCH_ARGS)

RANKS ?= 4
train-distributed:
	@$(call environment,bench) && exec $$py -m torch.distributed.run --nproc-per-node $(RANKS) examples/train_distributed.py $(TRAIN_ARGS)

train:
	@$(call environment,bench) && exec $$py examples/train_language_model.py $(TRAIN_ARGS)

build:
	@$(call environment) && exec $$py -m sinpe_ext info

cpp:
	@for name in $${CXX:-c++ g++ clang++}; do command -v $$name >/dev/null && found=$$name && break; done; \
	if [ -z "$$found" ]; then \
	  echo "cpp: no C++ compiler, so the C++ tests are skipped; install g++ or clang++, or set CXX"; exit 0; fi; \
	if ! command -v cmake >/dev/null; then echo "cpp: cmake was not found: pip install cmake"; exit 1; fi; \
	mkdir -p build; cmake -S . -B $(BUILD) -DCMAKE_CXX_STANDARD=$(CXX_STANDARD) $(CMAKE_ARGS) >build/cmake.log || { cat build/cmake.log; exit 1; }; \
	cmake --build $(BUILD) --parallel $${CMAKE_BUILD_PARALLEL_LEVEL:-$$(nproc 2>/dev/null || echo 2)} && ctest --test-dir $(BUILD) --output-on-failure --parallel $${CMAKE_BUILD_PARALLEL_LEVEL:-$$(nproc 2>/dev/null || echo 2)}

# Which compilers and which tests: tools/arm64.py.
arm64:
	@exec $(PYTHON) tools/arm64.py $(ARM64_ARGS)

# How it is done, what it downloads and how to go without: tools/cuda_check.py.
cuda-check:
	@$(call environment,test) && exec $$py tools/cuda_check.py

# What the machine code of the CUDA kernels does, without a device: tools/cuda_sass.
cuda-sass:
	@$(call environment,cuda-sass) && cd tools && exec $$py -m cuda_sass $(SASS_ARGS)

asan: asan-cpp
	@$(call environment,test) && exec $$py tools/asan.py $(ASAN_ARGS)

asan-cpp:
	@$(MAKE) cpp BUILD=build/asan CMAKE_ARGS="$(CMAKE_ARGS) -DSINPE_SANITIZE=ON -DSINPE_BUILD_EXAMPLES=OFF -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS=-O1"

tsan:
	@$(call environment,test) && exec $$py tools/tsan.py $(TSAN_ARGS)

exhaustive:
	@$(call environment,test) && exec $$py tools/exhaustive.py $(EXHAUSTIVE_ARGS)

# FUZZ_ARGS go to pytest: --require-backend=emulated for the CUDA kernels as plain C++. How it is done: tools/fuzz.py.
fuzz:
	@$(call environment,test) && exec $$py tools/fuzz.py --minutes $(FUZZ_MINUTES) --jobs $(JOBS) -- $(FUZZ_ARGS)

bad-input:
	@$(call environment,test) && $$py -m pytest -q -m bad_input --require-backend=compiled && exec $$py tools/bad_input.py --check

faults:
	@$(call environment,test) && exec $$py tools/faults.py $(FAULTS_ARGS)

wheels:
	@$(nox) -s wheels -- $(WHEEL_ARGS)

check-wheels:
	@$(nox) -s check-wheels installs

record:
	@exec $(PYTHON) tools/records.py $(OF)

lint:
	@$(call environment,lint) && tools/lint.sh

format:
	@$(call environment,lint) && tools/lint.sh --fix

clean:
	rm -rf build dist *.egg-info sinpe_ext/*.so sinpe_ext/_build.json .pytest_cache .hypothesis .mypy_cache .ruff_cache
	rm -f $(if $(VENV),$(VENV),.venv)/.sinpe_ext.built
	find . -path './.*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(if $(VENV),$(VENV),.venv) .nox
