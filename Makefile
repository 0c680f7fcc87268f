# `make demo` and `make test` do all set-up. Everything lands in .venv, data, reports and .orderproof.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := infra/locks/cpu.txt

export PATH := $(CURDIR)/$(BIN):$(PATH)
# Local services' state stays in the project; telemetry stays off (orderproof/telemetry.py says the same to every other caller).
export PREFECT_HOME ?= $(CURDIR)/.orderproof/prefect
export DO_NOT_TRACK := 1
export DVC_NO_ANALYTICS := 1
export DVC_SITE_CACHE_DIR ?= $(CURDIR)/.orderproof/dvc

.PHONY: demo test test-long bench lint types install lock clean help

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(VENV)/installed  ## everything into .venv, at the versions of infra/locks/cpu.txt

# The lock is complete, so nothing is resolved. torch's build for CPUs is not on PyPI: a wheel may be at hand
# (PIP_FIND_LINKS), else it comes from PyTorch's own index.
$(VENV)/installed: $(LOCK) pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r $(LOCK) || \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r $(LOCK) \
	    --extra-index-url https://download.pytorch.org/whl/cpu
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

lock:  ## renew infra/locks/cpu.txt
	$(BIN)/uv pip compile pyproject.toml --extra cpu --extra dev --override infra/locks/left-out.txt \
	    --constraint infra/locks/torch-cpu.txt --python-version 3.11 --no-header --no-annotate --upgrade \
	    $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS),--torch-backend cpu) --no-emit-index-url --output-file $(LOCK)

demo: install  ## the whole main job on six-domains: prompts, model, trial, verdict, page
	@test -d .dvc || $(BIN)/dvc init $(if $(wildcard .git),,--no-scm) --quiet
	$(BIN)/dvc repro --quiet demo-prompts@six-domains demo-model@moe
	$(BIN)/python -m flows.measure six-domains --only-if-changed
	@echo "MLflow: $(BIN)/orderproof ui  (loopback only)"

test: install lint types  ## lint, types, unit tests, simulation, end to end on the real tools
	$(BIN)/python -m pytest -m "not long"

test-long: install  ## what does not fit into `make test`
	$(BIN)/python -m pytest -m long --timeout 3600

bench: install  ## ways to order beside the published recipe and the greedy oracle; what ordering costs; 120 minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r infra/locks/bench.txt
	@test -d .dvc || $(BIN)/dvc init $(if $(wildcard .git),,--no-scm) --quiet
	$(BIN)/dvc repro --quiet demo-model@moe
	$(BIN)/python infra/bench/bench.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: install
	$(BIN)/mypy flows orderproof tasks

clean:  ## drop local services' state; no evidence is lost
	rm -rf .orderproof
