# Every target makes the environment that it needs, in .venv (test-ecosystem: in .venv-ecosystem), and keeps it until
# pyproject.toml changes.
#
#   make demo                      real images out of a real S3 server into a training loop
#   make test                      the whole suite           make test ARGS="-k engine -x"
#                                  (ARGS=--cold: every interpreter that a test uses is started for real)
#   make test-ecosystem            training with accelerate, transformers and Lightning, in one process and in two
#   make test-ceph                 the tests of stores against a second S3 server, Ceph, where that is installed
#   make chaos                     hundreds of loaders whose processes are killed, ten minutes   make chaos ARGS="--seed 137 -v"
#   make lint                      ruff and mypy --strict
#   make bench                     the transport benchmark   make bench ARGS="--quick --case tiny"
#   make docs                      checks links and Python blocks of README.md and docs/
#   make clean                     removes .venv, caches and build outputs

VENV  := .venv
PY    := $(VENV)/bin/python
STAMP := $(VENV)/installed
ECOSYSTEM := .venv-ecosystem
ARGS  ?=
# Processes that run tests side by side: most of a test is waiting. One by one, with output as it comes: TESTERS=0
# Files go round in order, not by the number of their tests: few long ones would come last, and run alone.
TESTERS ?= 3
PIP   := -m pip --disable-pip-version-check --no-input -qq
# Only what is imported is compiled, when it is: compiling everything takes as long as installing it.
INSTALL := $(PIP) install --no-compile
# Bytecode is kept whatever the environment says: every process would compile everything anew.
COMPILE := env -u PYTHONDONTWRITEBYTECODE

# One known release, installed first: otherwise pip takes the newest that some other requirement admits.
# aloader works with every torch >= 2.4:  make clean test TORCH=torch==2.6.0
TORCH ?= torch==2.13.0

# The first interpreter here that is new enough and can make a virtual environment; or: make PYTHON=/path/to/python3.12
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$python -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo $$python; break; }; done)

.PHONY: help demo test test-ecosystem test-ceph chaos lint bench docs clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

demo: $(STAMP)
	@$(COMPILE) $(PY) examples/quickstart.py $(ARGS)

test: $(STAMP)
	@$(COMPILE) $(PY) -m pytest -q -n $(TESTERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-ecosystem: $(ECOSYSTEM)/installed
	@$(COMPILE) $(ECOSYSTEM)/bin/python -m pytest -q -o faulthandler_timeout=1000 -m ecosystem tests/ecosystem $(ARGS)

test-ceph: $(STAMP)
	@$(PY) -m pytest -q -m ceph tests/storage $(ARGS)

chaos: $(STAMP)
	@$(PY) -m tests.chaos --minutes 10 $(ARGS)

lint: $(STAMP)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check -q .
	@$(PY) -m mypy

bench: $(STAMP)
	@$(PY) examples/benchmarks/transport.py $(ARGS)

docs: $(STAMP)
	@$(PY) docs/check.py

clean:
	rm -rf $(VENV) $(ECOSYSTEM) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml
	$(environment)
	@echo "installing aloader, editable, with everything that tests, demo and benchmarks need"
	@$(@D)/bin/python $(INSTALL) -e '.[dev]'
	@$(COMPILE) $(@D)/bin/python -c 'import aloader'
	@touch $@

# What torch the frameworks would like is not asked: pip is told to keep this one.
$(ECOSYSTEM)/installed: pyproject.toml
	$(environment)
	@echo "installing aloader, editable, and the frameworks"
	@echo "$(TORCH)" >$(@D)/constraints.txt
	@$(@D)/bin/python $(INSTALL) -c $(@D)/constraints.txt -e '.[ecosystem]'
	@touch $@

define environment
	@test -n "$(PYTHON)" || { echo "aloader needs Python 3.11 or newer with its venv module" \
		"(Debian: python3-venv), and found none; or name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(@D)/bin/python || { echo "making $(@D) with $(PYTHON)"; $(PYTHON) -m venv $(@D); }
	@echo "installing $(TORCH)"
	@$(@D)/bin/python $(INSTALL) "$(TORCH)"
endef
