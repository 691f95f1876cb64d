# Needs python3 (3.11 or later) with its venv module, and no compiler. PYTHON=python3.12 chooses another interpreter.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
INTEGRATIONS := .venv-integrations
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

# Files of tests are spread over the cores, the longest first (tests/conftest.py).
SPREAD := -n auto --dist loadfile --no-loadscope-reorder
# Each has a core for itself. Threads of torch and of numpy's BLAS would wait for one another there, and waiting takes
# CPU time.
ONE_THREAD := OMP_NUM_THREADS=1

# Tests that run a second time on the code that a CPU without AVX and BMI gets, and, where there is AVX-512, once more
# on that for AVX2: steps of float32 with `make test`, and with `make slow` all kernels and whole frames of all types.
# Left out is what does not depend on that: denormals that are flushed; float64 and the types of 8 bits, which take
# the plain loops on every CPU; GComp's code, which is one more choice of code lengths; tensors and optimizers; and
# the cache of kernels.
STEP_TESTS := $(addprefix tests/kernels/test_,vector_steps.py encode_streams.py class_ranks.py scale_steps.py \
	low_zeros.py)
FRAME_TESTS := tests/kernels/test_kernels.py tests/plan/test_prediction.py \
	$(addprefix tests/codec/test_,codec.py predicted_rows.py streams.py encode.py wrong_arguments.py inspect.py)
PORTABLE_TESTS := $(STEP_TESTS)
PORTABLE_TYPES := float32 bfloat16 float16
WITHOUT := or float16 or (ranks_are and (uint8 or uint16 or uint64))
# The name alone keeps the features of the machine at hand; the empty list takes them away.
PORTABLE := NUMBA_CPU_FEATURES= NUMBA_CACHE_DIR=$(CURDIR)/.cache/numba-portable
OLDER_CPUS := x86-64-v2 $(if $(shell grep -m1 -o avx512_vbmi2 /proc/cpuinfo 2>/dev/null),x86-64-v3)

.DELETE_ON_ERROR:
.PHONY: help demo test check portable compiled pytest suites slow fuzz test-gpu check-gpu gpu-instructions gpu-laws first-gpu test-integrations matrix sanitize-gpu golden bench bench-gpu bench-cluster experiments pictures docs wheel sdist clean

help:           ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(VENV)/.installed       ## see it work: a short training run, its gradients compressed
	@$(BIN)/gcodec demo

# What tests run is compiled before them, with the parts that other kernels take of it. An installation that compiles
# keeps only kernels for users, in a time that it has, so an environment that is made for tests leaves that out.
test check pytest portable: export GCODEC_COMPILE ?= 0

# mypy, which has one thread, beside the first tests and compilers: they leave a core without work now and then.
test: $(VENV)/.installed        ## ruff, mypy, the portable kernels, then all tests but the slow ones
	@$(MAKE) --no-print-directory --jobs=2 check compiled
	@$(MAKE) --no-print-directory suites

compiled: portable
	@$(BIN)/python -m tests.support.precompile

pytest: $(VENV)/.installed
	@$(BIN)/python -m tests.support.precompile
	@$(MAKE) --no-print-directory suites

# In one session, so that no core waits between two. Tests among ranks come last in it (tests/conftest.py).
suites:
	@$(ONE_THREAD) $(BIN)/python -m pytest $(SPREAD)

# On x86-64 only: elsewhere there is one path, and `pytest` runs it.
portable: $(VENV)/.installed
	@if [ "$$(uname -m)" = x86_64 ]; then for cpu in $(OLDER_CPUS); do \
		NUMBA_CPU_NAME=$$cpu $(ONE_THREAD) $(PORTABLE) $(BIN)/python -m pytest -q $(SPREAD) $(PORTABLE_TESTS) -k "not (flushes or \
			denormals_are or float64 or float8 $(WITHOUT) or GComp or tensors_are or optimizer or anew or renamed)" \
			|| exit 1; done; fi

check: $(VENV)/.installed       ## ruff and mypy
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy

# With the codecs that bench/ compares with: one of the tests is a run of it.
slow: $(VENV)/.bench           ## the tests that take minutes or gigabytes
	@$(BIN)/python -m pytest --hypothesis-profile=thorough -m "slow and not gpu"
	@if $(MAKE) --no-print-directory $(NVIDIA)/.installed; then $(MAKE) --no-print-directory check-gpu; else \
		echo "left out: make check-gpu, for NVIDIA's packages cannot be installed here"; fi
	@for cpu in $(OLDER_CPUS); do \
		NUMBA_CPU_NAME=$$cpu $(PORTABLE) $(BIN)/python -m tests.support.precompile $(PORTABLE_TYPES) || exit 1; done
	@$(MAKE) --no-print-directory portable WITHOUT= PORTABLE_TESTS="$(STEP_TESTS) $(FRAME_TESTS)"

fuzz: $(VENV)/.installed        ## mutated bytes into everything that reads them, 9 minutes; FUZZ_ARGS="--executions 10000000" takes 90
	@$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

test-gpu:       ## what needs a CUDA device, with whatever PYTHON brings: nothing is installed
	@$(PYTHON) -m pytest -m gpu tests/gpu/test_gpu.py

# NVIDIA's compiler and disassembler, in a folder of their own: torch's builds for CUDA ask for versions of theirs.
NVIDIA := .cache/nvidia
NVIDIA_TOOLS := nvidia-cuda-nvrtc==13.5.37 nvidia-cuda-nvdisasm==13.5.37
GPU_CHECKS := tests/gpu/test_native.py tests/gpu/test_instructions.py

# The laws of the kernels on what NVRTC makes of them, run by this CPU: PTX="13.5:90 12.4" chooses versions, each with one
# architecture or all that it compiles for; LAWS="lossless hashes" some laws; SCHEDULES=10 more orders of threads.
NVRTC_12.4 := nvidia-cuda-nvrtc-cu12==12.4.127
NVRTC_12.8 := nvidia-cuda-nvrtc-cu12==12.8.93
NVRTC_13.0 := nvidia-cuda-nvrtc==13.0.88
PTX := 12.4 12.8 13.0 13.5
SCHEDULES := 1
ifdef QUICK
PTX := 13.5:90
GPU_CHECKS := tests/gpu/test_instructions.py -k "sm_90 or not sm_"
LAWS := places_of_any_alignment lossless ladders golden_frames statuses_that_are_read_late spoilt_patches histograms \
	levels_by_the_rules hashes blocks_that_look_back blocks_that_end_with_their_planes
endif
PTX_VERSIONS := $(foreach word,$(PTX),$(firstword $(subst :, ,$(word))))
PTX_NVRTC := $(patsubst %,$(NVIDIA)/nvrtc-%/.installed,$(filter-out 13.5,$(PTX_VERSIONS)))

check-gpu: gpu-instructions gpu-laws ## the GPU kernels' device code, without a GPU: limits, and the laws on a CPU, an hour; QUICK=1 tries it

gpu-instructions: $(NVIDIA)/.installed
	@PYTHONPATH=$(NVIDIA) $(BIN)/python -m pytest $(GPU_CHECKS)

gpu-laws: $(NVIDIA)/.installed $(PTX_NVRTC)
	@GCODEC_PTX="$(PTX)" GCODEC_PTX_LAWS="$(LAWS)" GCODEC_PTX_SCHEDULES="$(SCHEDULES)" \
		$(BIN)/python -m pytest $(if $(QUICK),-k "not is_missed",-n auto --dist loadgroup) tests/gpu/ptx

# Without torch's pool every tensor is an allocation of its own, whose ends the sanitizer knows.
SANITIZER ?= compute-sanitizer
SANITIZED := batch or levels or spoilt or frames_of_the_host or fixed_bits or any_frames or without_references or patches or xxh3

sanitize-gpu:   ## the same kernels under NVIDIA's compute-sanitizer: bounds, races, barriers, what was never written
	@for tool in memcheck racecheck synccheck initcheck; do \
		echo "== $$tool"; \
		PYTORCH_NO_CUDA_MEMORY_CACHING=1 $(SANITIZER) --tool $$tool --error-exitcode 9 \
			$(PYTHON) -m pytest -q -m gpu tests/gpu/test_gpu.py -k "$(SANITIZED)" || exit 1; \
	done

test-integrations: $(INTEGRATIONS)/.installed   ## what runs inside other libraries: Zarr, Lightning, transformers ...
	@$(INTEGRATIONS)/bin/python -m pytest tests/integrations tests/archive/test_urls.py \
		tests/distributed/test_frameworks.py tests/test_doc_blocks.py

# MATRIX_ARGS="--python 3.13 --packages newest" tries one pair.
matrix: $(VENV)/.installed      ## each Python with the oldest and the newest packages, in environments of their own; an hour
	@$(BIN)/python -m tools.matrix $(MATRIX_ARGS)
	@$(BIN)/python -m bench.report

golden: $(VENV)/.installed      ## add golden frames and archives that are missing, and write the corpus' sizes
	@$(BIN)/python -m tests.support.make_golden
	@$(BIN)/python -m tests.support.golden_archives

bench: $(VENV)/.bench          ## the codec beside its peers, an hour; BENCH_ARGS=--quick tries it, in two
	@$(BIN)/python -m bench $(BENCH_ARGS)

first-gpu:      ## a CUDA device's first minutes: are frames right, how fast, in bench/results/first-gpu.csv; under 8 minutes
	@$(PYTHON) -m bench.first_gpu

bench-gpu:      ## codec and all-reduces on a CUDA device, with whatever PYTHON brings. BENCH_ARGS=--quick tries it
	@$(PYTHON) -m bench.gpu $(BENCH_ARGS)
	@$(PYTHON) -m bench.gpu_allreduce $(BENCH_ARGS)

bench-cluster: $(VENV)/.bench  ## compressed all-reduces over links of limited rate; as root. BENCH_ARGS=--quick tries it
	@$(BIN)/python -m bench.cluster $(BENCH_ARGS)

experiments: $(VENV)/.installed ## the papers' experiments on small models, 40 minutes to two hours. EXPERIMENT_ARGS=--quick tries them
	@$(BIN)/python -m bench.experiments.gcomp $(EXPERIMENT_ARGS)
	@$(BIN)/python -m bench.experiments.gcomp_pictures
	@$(BIN)/python -m bench.experiments.gcomp_drops $(EXPERIMENT_ARGS)
	@$(BIN)/python -m bench.experiments.gravac $(EXPERIMENT_ARGS)
	@$(BIN)/python -m bench.experiments.gravac_bits $(EXPERIMENT_ARGS)
	@$(BIN)/python -m bench.experiments.gradzip $(EXPERIMENT_ARGS)
	@$(BIN)/python -m bench.experiments.lgreco $(EXPERIMENT_ARGS)
	@$(BIN)/python -m bench.experiments.accuracy $(EXPERIMENT_ARGS)
	@$(BIN)/python -m bench.experiments.outer $(EXPERIMENT_ARGS)
	@$(BIN)/python -m bench.pictures
	@$(BIN)/python -m bench.report

pictures: $(VENV)/.installed    ## draw the pictures whose tables have changed
	@$(BIN)/python -m bench.pictures

docs: $(VENV)/.docs            ## the site, with a reference of the API: build/site/index.html
	@$(BIN)/python -m tools.site

wheel: $(VENV)/.installed       ## a wheel for this Python with compiled kernels, in dist/; six minutes, on a CPU with AVX-512
	@GCODEC_COMPILE=all $(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

sdist: $(VENV)/.installed       ## the source distribution, in dist/
	@$(BIN)/python -m build --sdist --outdir dist .

clean:          ## remove what make and the tools made
	rm -rf gcodec/kernels/compiled $(VENV) $(INTEGRATIONS) .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

AND_COMPILING = $(if $(filter 0,$(GCODEC_COMPILE)),, and compiling the kernels that are used first)

# pip would compile thousands of modules one after another, and most of them are never imported. Those that are compile
# themselves when they first are; but tests start hundreds of processes, and where the environment forbids to keep
# bytecode, each of them would take seconds to compile what it imports. There all modules are compiled, but for tests of
# packages, and what comes with pip and torch's compiler.
UNUSED := /(tests?|testing|_inductor|onnx|pip|setuptools|networkx|mypy|mypyc|pygments|fontTools)/
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("gcodec needs Python 3.11 or later" if sys.version_info < (3, 11) else 0)'
	@echo "installing into $(VENV)$(AND_COMPILING): a minute or two"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[dev]'
	@if [ -n "$$PYTHONDONTWRITEBYTECODE" ]; then \
		$(BIN)/python -m compileall -q -j 0 -x '$(UNUSED)' $(VENV)/lib gcodec bench tests >/dev/null || true; fi
	@touch $@

# A venv of its own, for these libraries are large.
$(INTEGRATIONS)/.installed: pyproject.toml constraints.txt
	@echo "installing into $(INTEGRATIONS)"
	@$(PYTHON) -m venv $(INTEGRATIONS)
	@$(subst $(BIN),$(INTEGRATIONS)/bin,$(PIP)) --editable '.[dev,integrations]'
	@touch $@

# The kernels are compiled already.
$(VENV)/.bench: $(VENV)/.installed
	@GCODEC_COMPILE=0 $(PIP) --editable '.[bench]'
	@touch $@

$(NVIDIA)/.installed: $(VENV)/.installed Makefile
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(NVIDIA) $(NVIDIA_TOOLS)
	@touch $@

$(NVIDIA)/nvrtc-%/.installed: $(VENV)/.installed Makefile
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(@D) $(NVRTC_$*)
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	@GCODEC_COMPILE=0 $(PIP) --editable '.[docs]'
	@touch $@
