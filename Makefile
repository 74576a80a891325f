# `make` alone lists the targets. Nothing is decided here: every target calls Python.
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.gemm-tracks
K ?= v6_transposed_split
SHAPE ?= 1024x1024x1024
RUN ?= latest
ARGS ?=
LINES ?=
COVERED := build/coverage/lines.json
CUDA_SOURCES = find kernel handwritten cutlass_ref compare tests -name '*.cu' -o -name '*.cuh'

.DEFAULT_GOAL := help
.PHONY: help setup compare test test-slow test-cluster coverage uncovered lint bundle gpu-session readme report sass ncu sanitize clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	$(PYTHON) -m compare.bootstrap $(VENV)
	@touch $@

setup: $(STAMP)  ## make .venv and install into it (PYTHON= picks the interpreter)

compare: $(STAMP)  ## the main job: build, check, time and report (ARGS="--shapes 4096x4096x4096")
	$(PY) -m compare compare $(ARGS)

test: $(STAMP)  ## the tests that are quick and need no GPU
	$(PY) -m pytest -n logical --dist worksteal -m "not slow and not gpu" $(ARGS)

test-slow: $(STAMP)  ## the rest of the tests that need no GPU
	$(PY) -m pytest -n logical --dist worksteal -m "slow and not gpu" $(ARGS)

coverage: $(STAMP)  ## which lines run without a GPU (all tests, 20 minutes); below 90 % it fails
	$(PY) -m pytest -n logical --dist worksteal -m "not gpu" --cov --cov-report=term --cov-report=json:$(COVERED) $(ARGS)

uncovered: $(STAMP)  ## after that: the blocks that need a GPU (LINES=folder from GPU sessions: that none ran)
	$(PY) -m tests.lines_run $(COVERED) $(LINES)

test-cluster: $(STAMP)  ## on GPUs: a cluster of one, and where there are two, two against one
	$(PY) -m pytest -m gpu -rs tests/test_cluster_gpu.py $(ARGS)

lint: $(STAMP)  ## ruff, mypy --strict and clang-format, as CI runs them
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(CUDA_SOURCES) | xargs $(VENV)/bin/clang-format --dry-run -Werror

bundle: $(STAMP)  ## write what a GPU machine needs to run this checkout into build/bundle
	$(PY) -m compare.session bundle

gpu-session: $(STAMP)  ## on a GPU: GPU tests, sanitizer, and the run that is recorded
	$(PY) -m compare.session run $(ARGS)

readme: $(STAMP)  ## renew tables, pictures and pages that follow from code and results/nvidia-h200/latest
	$(PY) -m compare.readme

report: $(STAMP)  ## the recorded run as one HTML page in build/report.html (RUN=folder of another)
	@mkdir -p build
	$(PY) -m compare report $(RUN) --html build/report.html

sass: $(STAMP)  ## machine code of one kernel (K=name)
	$(PY) -m compare inspect $(K) --sass

ncu: $(STAMP)  ## one kernel under Nsight Compute (K=name)
	$(PY) -m compare inspect $(K) --ncu --shape $(SHAPE)

sanitize: $(STAMP)  ## one kernel under compute-sanitizer (K=name)
	$(PY) -m compare.sanitize --kernels $(K) --out build/sanitize

clean:  ## remove build/, dist/ and tool caches; the environment and the build cache stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
