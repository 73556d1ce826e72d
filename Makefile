# The few commands of this project; "make help" lists them.
# Needs git, make and Python 3.11 or newer. Everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_READY := $(VENV)/.demo-ready
DEV_READY := $(VENV)/.dev-ready
UNFINISHED := $(VENV)/.unfinished
DATED := pyproject.toml lab/pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-all soak lint audit format bench results docs clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

demo: $(DEMO_READY) ## train HP-GMN on the built-in graph and print the table
	@$(BIN)/hpgmn demo

test: lint ## linters, types and the fast tests
	$(BIN)/pytest -n 2 -m "not slow" --durations=20

test-all: lint ## linters, types and every test, with coverage
	$(BIN)/pytest -n 2 --durations=20 --cov --cov-report=term:skip-covered

lint: $(DEV_READY) ## formatting, linters and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml src lab/src

audit: $(DEV_READY) ## known vulnerabilities of the pinned packages; needs the network
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install -qq --disable-pip-version-check pip-audit
	$(VENV)/audit/bin/pip-audit --disable-pip --no-deps --requirement constraints.txt

format: $(DEV_READY) ## write the formatting and the safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

soak: $(DEV_READY) ## the long form of the tests of docs/RELIABILITY.md, up to an hour
	rm -f lab/results/soak.jsonl
	HPGMN_SOAK=lab/results/soak.jsonl $(BIN)/pytest -n 2 --durations=20 tests
	$(BIN)/python -m hpgmn_lab.bench.page

bench: $(DEV_READY) ## measure against the yardstick; HPGMN_DATA names the folder of graph files
	$(BIN)/python lab/benchmarks/compare.py --data "$(HPGMN_DATA)"

results: $(DEV_READY) ## write the result pages in docs/ from the records in lab/results
	$(BIN)/python -m hpgmn_lab.results.page
	$(BIN)/python -m hpgmn_lab.bench.page

docs: $(DEV_READY) ## build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Open it (search needs a server): $(BIN)/python -m http.server --directory site 8000"

clean: ## remove .venv, caches and build outputs; runs/ stays
	rm -rf $(VENV) build dist site .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# Set-up. A stamp is written only after everything is installed; an interrupted set-up leaves the
# mark "unfinished" and starts over. The development set-up includes the runtime one.

$(DEMO_READY): $(DATED)
	$(call set-up,.)
	@touch $@

$(DEV_READY): $(DATED)
	$(call set-up,.[dev]' -e './lab)
	@touch $(DEMO_READY) $@

define set-up
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "hpgmn needs Python 3.11 or newer; name one with: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; \
	exit 1; }
@echo "Setting up $(VENV) (a few minutes the first time)…"
@if [ -e $(UNFINISHED) ] || [ ! -x $(BIN)/python ]; then \
	rm -rf $(VENV) && mkdir $(VENV) && touch $(UNFINISHED) && $(PYTHON) -m venv $(VENV); \
fi
@rm -f $(DEMO_READY) $(DEV_READY) && touch $(UNFINISHED)
@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '$(1)'
@rm $(UNFINISHED)
endef
