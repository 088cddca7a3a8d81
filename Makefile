# Developer interface; every target works alone on a fresh clone. The work is done by the scripts named here.
#   make install | run [ONCE=1] | test | lint | bench [SERVICE=1 | PEERS=1] | accept [NAME=answers] | foreign | lock | clean
# Settings: PYTHON (makes .venv), TORCH_INDEX (a package index for torch), PORT and RUN_FLAGS (make run), TESTS (paths or flags).

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
NAME ?= answers
TESTS ?=
# Seconds since the epoch at which make was called: `make run` reports the time from here to the answer.
export MAKE_BEGAN := $(shell date +%s.%N)

.PHONY: install run test lint bench accept foreign lock clean help
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -3

install:
	@bash scripts/system_packages.sh "$(PYTHON)"
	@$(PYTHON) scripts/install.py --venv $(VENV)

run: install
	@exec $(PY) -m scripts.run $(if $(ONCE),--once) $(if $(PORT),--port $(PORT)) $(RUN_FLAGS)

test: install
	@$(PY) -m scripts.test $(TESTS)

lint: install
	@$(PY) -m scripts.lint

bench: install
	@$(PY) -m $(if $(SERVICE),scripts.bench,$(if $(PEERS),tests.bench.peers,tests.bench.cpu)) $(BENCH_FLAGS)

accept: install
	@$(PY) -m scripts.accept $(NAME)

foreign: install
	@$(PY) -m tests.foreign --write

lock: install
	@$(PY) -m scripts.lock

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage htmlcov
	rm -f accept-*.json
	find appliance edge cloud kernels models scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
