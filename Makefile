# Everything that is needed on a fresh machine: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
WITNESSES := .venv-witnesses
TRITON := .triton
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo install check test test-slow lint format bench gpu-check swap-matrix structure clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[lab]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.demo

# Without constraints.txt: the packages of others need other versions.
$(WITNESSES)/.done: pyproject.toml
	$(PYTHON) -m venv --clear $(WITNESSES)
	$(WITNESSES)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[visa,witnesses]'
	@touch $@

# A folder of its own, without what it would bring: torch stays as it is, and imports triton where it can.
$(TRITON)/.done: $(BIN)/python Makefile
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps --target $(TRITON) triton==3.9.0
	@touch $@

demo: $(VENV)/.demo  ## Results of Tong et al. 2007, and one experiment on a simulation, a bench and a board (five minutes)
	$(BIN)/reservoir-hw run examples/elman_grammar/paper.yaml
	$(BIN)/python examples/virtual_bench/side_by_side.py

install: $(VENV)/.dev  ## Install everything that tests and benchmarks need

check: $(VENV)/.dev  ## ruff, import-linter, tests of the core and the contract: a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -m 'not slow' tests/core tests/test_package.py

# A core for each of the two workers: threads of both on all cores wait for each other.
test: $(VENV)/.dev  ## Tests that take less than a second each
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m 'not slow'

test-slow: $(VENV)/.dev $(WITNESSES)/.done $(TRITON)/.done  ## The longer tests, an hour on two cores
	OMP_NUM_THREADS=1 RESERVOIR_HW_WITNESSES=$(CURDIR)/$(WITNESSES)/bin/python RESERVOIR_HW_TRITON=$(CURDIR)/$(TRITON) \
		$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m slow

lint: $(VENV)/.dev  ## ruff, pyright, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev  ## Benchmarks beside other libraries, in one run
	$(BIN)/python benchmarks/esn.py

gpu-check: $(VENV)/.dev  ## Whether the GPU of this machine can be trusted
	$(BIN)/python tools/gpu_check.py

swap-matrix: $(VENV)/.dev  ## Every experiment of the examples on every reservoir file: the table of docs/swap.md
	$(BIN)/python -m tools.swap_matrix

structure: $(BIN)/python  ## Count rooms, arrows, code lines, guards, dispatches
	$(BIN)/python tools/structure.py

clean:  ## Remove the environment and everything that was built
	rm -rf $(VENV) $(WITNESSES) $(TRITON) build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis
