# Everything here runs in .venv, which is made from requirements.lock (exact
# versions, checked hashes) the first time and again whenever the lock changes.

PYTHON ?= python3
# Test processes side by side, each with 8 virtual devices on the CPU: one more
# than cores, since many tests wait for processes of their own.
WORKERS ?= 3
# More arguments for pytest: make test PYTEST_ARGS="-k clipping -x"
PYTEST_ARGS ?=
# Of the cluster's test: make test-cluster CLUSTER_ARGS="--kills 10 --images 2000"
CLUSTER_ARGS ?=
UV_VERSION := 0.13.8
UV := build/uv/bin/uv

# Python keeps what it compiles beside the sources, whatever the environment
# says: with that the tests are collected in half of the time.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input -qq
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo docs kills test test-fast test-long test-stores test-cluster test-versions lint format wheel lock clean

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' \
	  $(MAKEFILE_LIST)

demo: $(VENV)/.project ## a private sweep from images to plots, in demo/
	@$(BIN)/oneshot-dp demo --out demo

# What is compiled for milliseconds of work takes half as long so. The long tests
# do without: they run what users run.
HASTE := --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false

# With the examples in docstrings: to look for them takes 2 s of each worker, and
# `make test-fast` does without.
test: $(VENV)/.project $(VENV)/.libtpu ## the tests, but for the long ones
	@XLA_FLAGS="$(HASTE)" $(PYTEST) --doctest-modules -m "not long and not stores" $(PYTEST_ARGS)

test-long: $(VENV)/.project $(VENV)/.libtpu ## kills, chance, real features: minutes of each
	@$(PYTEST) -m "long and not stores" $(PYTEST_ARGS)

# Its tests wait for no processes, and each worker must collect all tests first.
test-fast: WORKERS = 2
test-fast: $(VENV)/.project $(VENV)/.libtpu ## a quick look: no slow ones, no docstrings, types unchecked
	@ONESHOT_DP_CHECK_TYPES=0 XLA_FLAGS="$(HASTE)" $(PYTEST) -m "not slow and not long and not stores" $(PYTEST_ARGS)

test-stores: $(VENV)/.project ## real object stores on the loopback (built by Go)
	@$(PYTEST) -m stores tests/extract/storage_test.py tests/extract/storage_faults_test.py tests/pipeline/buckets $(PYTEST_ARGS)

test-versions: $(UV) ## a quick part, with the oldest and newest dependencies
	@$(PYTHON) tests/packaging/versions.py --uv $(UV) --oldest --newest

# Flink by a job server that runs already, with kills and stops; FlinkRunner and
# SparkRunner, which start one, with one kill each and caches on a store of S3.
# The rest takes more minutes, so it is by hand: `python -m tests.cluster.kills
# --runners FlinkRunner SparkRunner` has their stops too, `python -m
# tests.cluster.job_servers Flink Spark` runs them without an address, and
# `python -m tests.cluster.image` builds the image of workers.
test-cluster: $(VENV)/.project ## Flink, Spark, SLURM, workers killed; Prism (Java 17, Maven, Go, slurm-wlm, munge)
	@$(BIN)/python -m tests.cluster.kills $(CLUSTER_ARGS)
	@$(BIN)/python -m tests.cluster.kills --runners FlinkRunner SparkRunner \
	  --store s3 --images 160 --kills 1 --stops
	@$(BIN)/python -m tests.cluster.job_servers Prism
	@$(BIN)/python -m tests.cluster.slurm

kills: $(VENV)/.project ## 200 kills of each command, 1,100 of writers, 220 runs, 5,000 bad inputs, 3 million rows
	@ONESHOT_DP_KILLS=200 ONESHOT_DP_INPUTS=5000 ONESHOT_DP_ROWS=3000000 \
	  $(BIN)/python -m pytest tests/faults tests/pipeline/sizes_test.py $(PYTEST_ARGS)

lint: $(VENV)/.project ## ruff (rules, format) and pyrefly (types)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

format: $(VENV)/.project ## mend what ruff can mend
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

# Public names are imported when they are first used, and pdoc does not look
# for such: they are put in place first.
docs: $(VENV)/.project ## the API reference, from the docstrings, in build/docs
	@$(BIN)/python -W error -W ignore::DeprecationWarning -c '\
	import pathlib, oneshot_dp, pdoc; \
	public = {n: getattr(oneshot_dp, n) for n in oneshot_dp.__all__}; \
	vars(oneshot_dp).update(public); \
	pdoc.render.configure(docformat="google", math=True); \
	pdoc.pdoc("oneshot_dp", output_directory=pathlib.Path("build/docs"))'
	@echo "build/docs/oneshot_dp.html"

wheel: $(VENV)/.lock ## the wheel of this package, in dist/
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

lock: $(UV) ## resolve the dependencies of pyproject.toml anew
	@$(UV) pip compile pyproject.toml --quiet --upgrade \
	  --extra test --extra lint --extra docs --group build \
	  --universal --python-version 3.11 --fork-strategy fewest \
	  --generate-hashes --custom-compile-command "make lock" \
	  --output-file requirements.lock
	@echo "requirements.lock: $$(grep -c '^[a-z]' requirements.lock) packages"

clean: ## remove the environment and whatever was made in it
	@rm -rf $(VENV) build dist demo ./*.egg-info \
	  .pytest_cache .ruff_cache .hypothesis
	@find configs extract linear_dp pipeline tests -name __pycache__ \
	  -prune -exec rm -rf {} +

$(UV): Makefile
	@$(PYTHON) -m venv build/uv
	@build/uv/bin/python -m pip --disable-pip-version-check -qq \
	  install uv==$(UV_VERSION)
	@touch $@

# Some of the dependencies (promise, by way of tensorflow-datasets) are published
# as source only. Their build backend is the setuptools of the lock: installed
# first, and used in place, so that nothing comes in without a hash.
$(VENV)/.lock: requirements.lock
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
	  "oneshot-dp needs Python 3.11 or newer, and $(PYTHON) is " \
	  + sys.version.split()[0] + ": make PYTHON=python3.12 ...")'
	@echo "Installing requirements.lock in $(VENV) (a few minutes) ..."
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@sed -n '/^setuptools==/,/# via/p' requirements.lock > $(VENV)/build.lock
	@$(PIP) install --require-hashes --requirement $(VENV)/build.lock
	@sed '/^libtpu==/,/# via/d' requirements.lock > $(VENV)/other.lock
	@$(PIP) install --require-hashes --no-build-isolation \
	  --requirement $(VENV)/other.lock
	@touch $@

# The TPU's compiler, for the tests alone and in a folder of its own: among the
# other packages it would make every process look for a TPU, loudly.
$(VENV)/.libtpu: $(VENV)/.lock
	@sed -n '/^libtpu==/,/# via/p' requirements.lock > $(VENV)/libtpu.lock
	@$(PIP) install --require-hashes --no-deps --target $(VENV)/libtpu \
	  --requirement $(VENV)/libtpu.lock
	@touch $@

$(VENV)/.project: $(VENV)/.lock pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
