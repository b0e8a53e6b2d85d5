# The chores of bide. `make` alone prints this list.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo examples test servers test-full lint types docs bench peers soak fuzz vulnerabilities mutants dist next-python store-of-release fmt clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "bide needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "no venv could be made; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.run: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "== packages of Python"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@# arq asks for an older client of Redis than it needs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'arq==0.28.0'
	@touch $@ $(VENV)/.run

demo: $(VENV)/.run ## See orders time out, be paid and be delivered on time (20 s)
	$(BIN)/bide demo

test: $(VENV)/.dev servers ## Run every check: lint, types, docs, tests
	@echo "== checks: lint, types and docs, each shown when it is done"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync lint types docs
	@echo "== tests"
	$(BIN)/python -m pytest --numprocesses auto --max-worker-restart 0 examples tests

servers:
	@echo "== servers: Redis, RabbitMQ, nginx, Chromium and others are installed if they are missing"
	@tools/servers

test-full: $(VENV)/.dev ## Run every test: also Valkey, whole clusters, Python 3.11 to 3.13
	@tools/servers full
	$(BIN)/python -m pytest --numprocesses auto --max-worker-restart 0 -o faulthandler_timeout=1800 --full examples tests
	@for version in 3.11 3.12 3.13; do \
	  python=$$(tools/find-python $$version) || exit 1; \
	  echo "== Python $$version ($$python)"; \
	  $(MAKE) --no-print-directory test PYTHON=$$python VENV=.venv-$$version || exit 1; \
	done

examples: $(VENV)/.dev ## Play the examples, each with a real worker (30 s)
	@for name in order_timeout scheduled_message coupon_reminder meeting_room fastapi_shop; do \
	  echo "== $$name"; $(BIN)/python -m examples.$$name || exit 1; \
	done

lint: $(VENV)/.dev ## Check style (ruff)
	@echo "== lint"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## Check types (mypy, strict)
	@echo "== types"
	$(BIN)/mypy

docs: $(VENV)/.dev ## Build the documentation into docs/_build
	@echo "== docs"
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going docs docs/_build

bench: $(VENV)/.dev servers ## Measure bide against the raw limits of this machine
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group bench
	$(BIN)/python -m benchmarks core
	$(BIN)/python -m benchmarks redis
	$(BIN)/python -m benchmarks postgres
	$(BIN)/python -m benchmarks timing
	$(BIN)/python -m benchmarks worker
	$(BIN)/python -m benchmarks server
	$(BIN)/python -m benchmarks push
	$(BIN)/python -m benchmarks rabbitmq
	$(BIN)/python -m benchmarks celery

peers: $(VENV)/.dev ## Measure bide beside twelve other queues, which are installed here (1 h)
	$(BIN)/python -m benchmarks peers

soak: $(VENV)/.dev servers ## Explore the rules, kill workers and servers, share a file, attack the server, fill PostgreSQL (70 min)
	$(BIN)/python -m tests.soak.exploration --depth 6
	$(BIN)/python -m tests.soak.rules_of_time --rules 100000
	$(BIN)/python -m tests.soak.worker.kills --seconds 60
	$(BIN)/python -m tests.soak.rabbitmq.kills --seconds 60
	$(BIN)/python -m tests.soak.faults.eight_processes --seconds 60
	$(BIN)/python -m tests.soak.once
	$(BIN)/python -m tests.soak.proving --kills 1000
	$(BIN)/python -m tests.soak.under_attack
	$(BIN)/python -m tests.soak.postgres_bloat --seconds 120
	$(BIN)/python -m tests.soak.postgres_growth --messages 5000000

fuzz: $(VENV)/.dev servers ## Try random inputs, and random calls on all engines beside each other (6 min)
	$(BIN)/python -m tests.soak.fuzz --seconds 180
	$(BIN)/python -m tests.soak.differential --seconds 180

vulnerabilities: $(VENV)/.dev ## Look for known vulnerabilities of what bide needs (network)
	@$(BIN)/python tools/vulnerabilities

mutants: $(VENV)/.dev ## Break the engines on purpose, and see that the suite notices
	$(BIN)/python tools/mutants

dist: | $(BIN)/python ## Build wheel and sdist, and try them on every supported Python (4 min)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --group release
	$(BIN)/python tools/dist

next-python: | $(BIN)/python ## Try Python 3.14, in WebAssembly: syntax, imports, examples (2 min, network)
	$(BIN)/python tools/next-python

screenshots: $(VENV)/.dev servers ## Take the pictures of the dashboard for the documentation
	$(BIN)/python -m tests.system.dashboard.screenshots

store-of-release: $(VENV)/.dev servers ## Keep stores as this version writes them, for the tests of the next
	$(BIN)/python -m tests.contract.stores.kept

fmt: $(VENV)/.dev ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove what was built and installed
	rm -rf .venv .venv-* build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis
