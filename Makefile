# The commands for daily work. They need a fresh Debian with Python 3.10 or newer and its headers, a C++ compiler and make.
# CMake and Ninja come from PyPI, and so does Open MPI if the machine has no MPI.

PYTHON ?= python3
NP ?= 2
HVDLITE_STRESS_SECONDS ?= 180
HVDLITE_FUZZ_SECONDS ?= 60
HVDLITE_FUZZ_SEED ?= $(shell date +%s)
CELL ?= all

VENV := .venv
BIN := $(VENV)/bin
# The versions of the frameworks are fixed, because tests compare with their numbers. Packages that depend on them are installed
# after them. Python 3.10 gets the newest Keras that it can run, and no JAX.
FRAMEWORKS := 'torch==2.13.0' 'tensorflow-cpu==2.21.0' \
  'keras==3.15.1; python_version>="3.11"' 'jax==0.10.2; python_version>="3.11"'

BUILD_INPUTS := setup.py pyproject.toml CMakeLists.txt hvdlite/_version.py $(wildcard _build/*.py)
NATIVE_INPUTS := $(shell find csrc tests/native -type f)
CXX_FILES = $(shell find csrc tests -name '*.h' -o -name '*.cc' -o -name '*.cu')

# Allows any number of ranks on any number of cores, also for root (in a container).
MPI_ENV := OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
  PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMPI_MCA_rmaps_base_oversubscribe=1
# The mpirun of the MPI that the build chose: the environment's if it is a wheel, otherwise the machine's.
MPIRUN = $(shell test -x $(BIN)/mpirun && echo $(BIN)/mpirun || echo mpirun)

# With this variable set, each of the hundreds of Pythons that the tests start would compile the same files again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: venv develop wheel demo test test-all slice trace test-loaded mutants failures torch-distributed chaos elastic slow-links unstable-links knobs test-matrix clients sanitize asan tsan fuzz lint tidy arm64 format docs clean

venv: $(VENV)/.native

# A change of the list above installs the frameworks again.
$(VENV)/.frameworks: Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(FRAMEWORKS)
	touch $@

# An editable installation: tests and examples run from the tree, so a changed Python file needs no new installation. If the
# build chose an MPI wheel, this is a dependency of the package.
$(VENV)/.installed: $(BUILD_INPUTS) | $(VENV)/.frameworks
	$(BIN)/python -m pip install --editable '.[test,examples]'
	touch $@

# If native code has changed since the installation, it is built again without pip.
$(VENV)/.native: $(VENV)/.installed $(NATIVE_INPUTS)
	test -z "$$(find csrc tests/native -type f -newer $(VENV)/.installed)" || $(MAKE) develop
	touch $@

# The packages that a build without pip's isolation needs.
$(VENV)/.tools:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install 'setuptools>=77' 'nanobind>=2.4' 'cmake>=3.24' ninja 'mpi4py>=4'
	requirements=$$($(BIN)/python _build/mpi_choice.py) && test -z "$$requirements" || \
	  $(BIN)/python -m pip install "$$requirements"
	touch $@

# Builds only the native code, incrementally, into the source tree.
develop: $(VENV)/.tools
	mkdir -p build
	flock build/.lock $(BIN)/python setup.py --quiet build_ext --inplace --build-temp build/dev --build-lib build/dev/stage

# Builds wheels into dist/ for each CPython from 3.10 on that has headers here, or for some: make wheel PYTHONS="3.11 3.12".
wheel:
	$(PYTHON) _build/make_wheel.py $(PYTHONS)

demo: venv
	$(MPI_ENV) $(MPIRUN) -n $(NP) $(BIN)/python examples/torch_digits.py

# Runs all tests but those marked slow.
test: venv
	$(BIN)/python -m pytest $(PYTEST_OPTIONS)

test-all: venv
	$(BIN)/python -m pytest -m '' $(PYTEST_OPTIONS)

# Runs the slow tests that CI runs for HEAD; `SLICE_OPTIONS=--show` lists them.
slice: venv
	cd tests && ../$(BIN)/python -m support.slices $(SLICE_OPTIONS)

# Builds a second package, which records the native functions that run, for tests/unit/test_gradient_path.py.
trace: $(VENV)/.tools
	HVDLITE_TRACE=ON $(BIN)/python setup.py --quiet build --build-lib build/trace/tree --build-temp build/trace/cmake

# Runs the tests as on a busy machine: on one processor, on which two busy loops run as well.
test-loaded: venv
	core=$$($(BIN)/python -c 'import os; print(min(os.sched_getaffinity(0)))'); \
	taskset -c $$core sh -c 'while :; do :; done' & one=$$!; taskset -c $$core sh -c 'while :; do :; done' & two=$$!; \
	trap "kill $$one $$two" EXIT; taskset -c $$core $(BIN)/python -m pytest $(PYTEST_OPTIONS)

# Runs all cases of docs/failures.md and writes its tables. This takes a few minutes.
failures: venv
	cd tests && ../$(BIN)/python -m support.failure_report

# Runs all cases of docs/torch_distributed.md on hvdlite and on gloo, and writes its tables.
torch-distributed: venv
	cd tests && $(MPI_ENV) ../$(BIN)/python -m support.torch_functions_page

# Runs elastic trainings whose ranks are killed at random moments. A job takes half a minute on two cores
# (CHAOS='--jobs 20 --seed 7').
chaos: venv
	cd tests && ../$(BIN)/python -m support.chaos $(CHAOS)

# Measures hvdlite and TorchElastic, and writes the table and the picture of docs/elastic.md. This takes a few minutes and needs
# a machine without other work.
elastic: venv
	cd tests && ../$(BIN)/python -m support.elastic_report

# Measures on emulated hosts, and writes the table and the picture of docs/slow_links.md. This takes minutes and needs root.
slow-links: venv
	cd tests && ../$(BIN)/python -m support.slow_links_report

# Writes the table of unstable links in docs/slow_links.md. This takes ten minutes and needs root.
unstable-links: venv
	cd tests && ../$(BIN)/python -m support.unstable_links

# Writes the page of knobs and the engine's list of knobs from the table in hvdlite/knobs.py.
knobs: venv
	$(BIN)/python -m hvdlite.knobs > docs/knobs.md
	$(BIN)/python -m hvdlite.knobs native > csrc/include/hvdlite/knobs.inc

# Checks that the tests notice small defects. This takes hours, can be interrupted and continued, and is not a part of CI
# (tests/mutants/README.md has the options).
mutants: venv $(VENV)/.tools
	cd tests && ../$(BIN)/python -m mutants $(MUTANTS)

# Tests one wheel with many versions of Python, frameworks and MPIs, each in an environment of its own (tests/matrix). CELL is
# the name of a cell, or `rotating` for the cell that the commit's hash selects. The results go into docs/compatibility.md.
test-matrix:
	$(PYTHON) tests/matrix $(CELL)

# Runs programs of other projects from PyPI, each in an environment of its own (tests/clients). The results go into
# docs/clients.md.
clients:
	$(PYTHON) tests/clients $(CLIENTS)

sanitize: asan tsan

# Tests native code with the address and undefined-behaviour sanitizers, in a second package beside links to the rest of the
# tree. libstdc++ is preloaded too, because otherwise the sanitizer misses the exceptions of libraries that Python opens.
ASAN_TREE := build/asan/tree
# The files of tests/unit that call native code with memory or threads. tests/sim runs as well.
UNDER_ASAN := adasum arena arena_lives backends_cuda backends_numpy backends_torch binding bucket_launch c_abi collectives deaths \
  determinism engine_agreement engine_failures engine_operations fusion_kernels gpu_engine gpu_engine_failures \
  gpu_engine_streams gpu_faults gpu_schedules gpu_staging gpu_submit gradient_hooks handles hashes hierarchical join_order \
  kernel_values kernels leaving native_cases open_results output_cache plain_calls plain_calls_started prepared prepared_groups response_cache security \
  set_changes shared_memory_collectives shared_memory_parts stream_copy submit tile_stores timeline_files token \
  usage wait_many xla
asan: venv $(VENV)/.tools
	HVDLITE_SANITIZE=address,undefined $(BIN)/python setup.py --quiet build --build-lib $(ASAN_TREE) --build-temp build/asan/cmake
	for entry in $(filter-out build dist hvdlite %.egg-info,$(wildcard *)); do \
	  ln -sfn "$(CURDIR)/$$entry" "$(ASAN_TREE)/$$entry"; done
	cd $(ASAN_TREE) && PYTHONPATH="$(CURDIR)/$(ASAN_TREE)" \
	  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so.6)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  "$(CURDIR)/$(BIN)/python" -m pytest -n 2 -p no:cacheprovider tests/sim $(UNDER_ASAN:%=tests/unit/test_%.py)

# Runs threads as ranks under the thread sanitizer, without Python. The sanitizer's shadow memory needs a fixed address layout.
# Each file is compiled separately, which finds files that rely on the includes of others in their batch (CMakeLists.txt).
tsan: $(VENV)/.tools
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/tsan -G Ninja -DHVDLITE_SANITIZE=thread -DCMAKE_UNITY_BUILD=OFF \
	  -DHVDLITE_BUILD_PYTHON=OFF -DHVDLITE_BUILD_STRESS=ON
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/tsan --target hvdlite_stress
	TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1" \
	  $$(setarch -R true 2>/dev/null && echo setarch -R) build/tsan/hvdlite/hvdlite_stress $(HVDLITE_STRESS_SECONDS)

# Fuzzes the decoders of other ranks' bytes, and whole jobs with changed messages, under the address sanitizer
# (docs/security.md). With CXX=clang++ it uses libFuzzer, on a corpus that it keeps. Otherwise it uses a simple loop from a seed,
# which the last line names, built from the objects of `make asan`.
FUZZ_BUILD := $(if $(findstring clang,$(CXX)),build/fuzz/cmake,build/asan/cmake)
FUZZER := ../../$(FUZZ_BUILD)/hvdlite/hvdlite_fuzz
fuzz: $(VENV)/.tools
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B $(FUZZ_BUILD) -G Ninja -DHVDLITE_SANITIZE=address,undefined \
	  -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python" -DHVDLITE_BUILD_FUZZ=ON
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build $(FUZZ_BUILD) --target hvdlite_fuzz
	mkdir -p build/fuzz/corpus
	cd build/fuzz && if $(FUZZER) -help=1 2>&1 | grep -q libFuzzer; then \
	  ASAN_OPTIONS=detect_leaks=0 $(FUZZER) -max_total_time=$(HVDLITE_FUZZ_SECONDS) -timeout=30 -rss_limit_mb=2048 \
	  -len_control=0 -max_len=4096 corpus; \
	else UBSAN_OPTIONS=print_stacktrace=1 $(FUZZER) --write-corpus corpus && \
	  UBSAN_OPTIONS=print_stacktrace=1 $(FUZZER) $(HVDLITE_FUZZ_SECONDS) $(HVDLITE_FUZZ_SEED) corpus; fi

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/python -m pip install --editable '.[test,examples,dev]'
	touch $@

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/codespell

# Installs the packages that the site needs. hvdlite is installed already.
$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -c 'from importlib.metadata import requires; [print(each.partition(";")[0]) for each in requires("hvdlite") if "\"docs\"" in each]' \
	  | xargs $(BIN)/python -m pip install
	touch $@

# Builds the site in build/docs: pages, API reference, drawings. A warning is an error, and so is a link without a target.
docs: $(VENV)/.native $(VENV)/.docs
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs build/docs
	$(BIN)/python docs/links.py build/docs

# Runs the static analysis of the C++ files of csrc/, without the bindings and mpi_shim.cc.
tidy: $(VENV)/.dev
	$(BIN)/cmake -S . -B build/tidy -G Ninja -DCMAKE_MAKE_PROGRAM="$(CURDIR)/$(BIN)/ninja" -DCMAKE_UNITY_BUILD=OFF \
	  -DPython_EXECUTABLE="$(CURDIR)/$(BIN)/python"
	$(BIN)/clang-tidy -p build/tidy --quiet --warnings-as-errors='*' $(filter-out %/mpi_shim.cc csrc/bindings/%,$(filter csrc/%.cc,$(CXX_FILES)))

# Checks that the core compiles for arm64 (Debian's g++-aarch64-linux-gnu), for which only the scalar kernels are built.
arm64:
	@for source in $(filter-out %_avx2.cc %_avx512.cc %/mpi_shim.cc csrc/bindings/%,$(filter csrc/%.cc,$(CXX_FILES))); do \
	  aarch64-linux-gnu-g++ -std=c++20 -O2 -Wall -Wextra -Icsrc -Icsrc/include -DHVDLITE_VERSION='"arm64"' \
	    -DHVDLITE_X86_KERNELS=0 -ffp-contract=off -c $$source -o /dev/null || exit 1; done

format: $(VENV)/.dev
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CXX_FILES)

clean:
	rm -rf build dist ./*.egg-info hvdlite/*.so $(VENV)/.installed
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
