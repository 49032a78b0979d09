# Everything a person does here, one line each; CI calls the same targets. Nothing is installed outside .venv.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PY := $(BIN)/python

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

# --- set-up -----------------------------------------------------------------------------------------------------------

$(PY):
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Clew needs Python 3.11 or later; set PYTHON=/path/to/python3.11"'
	$(PYTHON) -m venv $(VENV)

# Two stamps, so that the demo needs no development tools.
$(VENV)/.stamp-base: pyproject.toml | $(PY)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml | $(PY)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(VENV)/.stamp-base $@

.PHONY: venv
venv: $(VENV)/.stamp-dev ## Make .venv with everything for development

# --- run --------------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/.stamp-base ## Run 300 insurance claims while the worker is killed again and again
	$(PY) -m examples.claims.demo $(ARGS)

.PHONY: bench
bench: $(VENV)/.stamp-dev ## Measure Clew beside the floor and the peers that are installed, and write the page
	$(PY) -m benchmarks.beside --page $(ARGS)

.PHONY: bench-clew
bench-clew: $(VENV)/.stamp-dev ## Measure Clew in more detail, next to the floor (ARGS="W1 W2 --link …")
	$(PY) -m benchmarks.run $(ARGS)

.PHONY: bench-parked
bench-parked: $(VENV)/.stamp-dev ## Measure what a million parked runs cost those that run
	$(PY) -m benchmarks.parked $(ARGS)

.PHONY: bench-growth
bench-growth: $(VENV)/.stamp-dev ## Measure how cost grows with history, runs, backlog, payloads, fan-outs and nodes, and draw it
	$(PY) -m benchmarks.growth --page $(ARGS)

.PHONY: bench-servers
bench-servers: $(VENV)/.stamp-dev ## Measure Clew's server beside the servers that are installed, and write the page
	$(PY) -m benchmarks.servers --page $(ARGS)

.PHONY: bench-peers
bench-peers: $(VENV)/.stamp-dev ## Install the engines that Clew is measured beside into build/peers (ARGS="dbos …")
	scripts/bench_peers.sh $(PY) $(ARGS)

.PHONY: bench-after-wait
bench-after-wait: $(VENV)/.stamp-dev ## Show what code costs on this machine after a wait for the disk
	$(PY) -m benchmarks.after_wait

.PHONY: bench-stages
bench-stages: $(VENV)/.stamp-dev ## Show where the time of a transition goes, by stage
	$(PY) -m benchmarks.stages --stages $(ARGS)

.PHONY: bench-opcodes
bench-opcodes: $(VENV)/.stamp-dev ## Count the bytecodes of the hot paths (ARGS=--record to record them)
	$(PY) -m benchmarks.opcodes $(ARGS)

.PHONY: bench-fleet
bench-fleet: $(VENV)/.stamp-dev ## Measure how much more nodes on one PostgreSQL database do than one
	$(PY) -m benchmarks.fleet $(ARGS)

.PHONY: bench-postgres
bench-postgres: $(VENV)/.stamp-dev ## Measure Clew beside DBOS and Absurd on one PostgreSQL server, and write the page
	$(PY) -m benchmarks.postgres --page $(ARGS)

.PHONY: bench-postgres-parked
bench-postgres-parked: $(VENV)/.stamp-dev ## Measure PostgreSQL beside a million sleepers (ARGS="--steps 1000000", "--prune 100000")
	$(PY) -m benchmarks.postgres_parked $(ARGS)

# --- check ------------------------------------------------------------------------------------------------------------

JOBS ?= 2
.PHONY: test
test: $(VENV)/.stamp-dev ## Run the whole test suite, files of it side by side (JOBS=2)
	$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --junitxml build/tests.xml $(ARGS)

.PHONY: proof-share
proof-share: $(VENV)/.stamp-dev ## Say how long the tests that prove took of the last `make test` (ARGS=--record keeps it)
	$(PY) -m scripts.proof_share $(ARGS)

.PHONY: second-look
second-look: $(VENV)/.stamp-dev ## Run the few tests that failed last, alone and twice each
	$(PY) -m scripts.second_look

# Sets of text have the same order in every process only under a fixed hash seed.
.PHONY: sim
sim: $(VENV)/.stamp-dev ## Simulate one seed under faults and check every law (SEED=…)
	PYTHONHASHSEED=0 $(PY) -m tests.simulation --seed $(or $(SEED),0) $(ARGS)

.PHONY: sim-soak
sim-soak: $(VENV)/.stamp-dev ## Simulate seed after seed (ARGS="--from 0 --count 10000")
	PYTHONHASHSEED=0 $(PY) -m tests.simulation --log tests/simulation/soaked.jsonl $(or $(ARGS),--count 10000)

.PHONY: test-postgres
test-postgres: $(VENV)/.stamp-dev ## Run all that concerns PostgreSQL: stores, service, cases, outages, the long ones too (RECORD=1 keeps the counts)
	CLEW_TEST_LONG=1 $(PY) -m pytest tests/conformance tests/postgres tests/outage -k 'not sqlite' \
		--junitxml build/postgres.xml $(ARGS)
	CLEW_TEST_LONG=1 CLEW_TEST_STORE=postgres $(PY) -m pytest tests/cases --junitxml build/postgres-cases.xml $(ARGS)
	$(PY) -m tests.postgres.record build/postgres.xml build/postgres-cases.xml $(if $(RECORD),--record)

.PHONY: test-postgres-versions
test-postgres-versions: $(VENV)/.stamp-dev ## Run what concerns PostgreSQL on every version that is supported (ARGS="14 16")
	CLEW_TEST_LONG=1 $(PY) -m tests.postgres.versions $(ARGS)

.PHONY: fleet-soak
fleet-soak: $(VENV)/.stamp-dev ## Kill, pause and stop nodes of a fleet on PostgreSQL for minutes while runs go on
	CLEW_TEST_LONG=1 CLEW_FLEET_SEEDS=200 $(PY) -m pytest tests/fleet/test_processes.py tests/fleet/test_chaos.py $(ARGS)

.PHONY: planted-faults
planted-faults: $(VENV)/.stamp-dev ## Plant faults in the engine, see which check catches each, and write the page
	PYTHONHASHSEED=0 $(PY) -m tests.simulation.hunt $(ARGS)

.PHONY: soak
soak: $(VENV)/.stamp-dev ## An hour of mixed load with kills; memory, files and the store's size are watched (ARGS="--seconds …")
	$(PY) -m tests.soak $(or $(ARGS),--record tests/soak/record.json)

.PHONY: soak-leaks
soak-leaks: $(VENV)/.stamp-dev ## Try the soak's check of memory: ten minutes of processes that keep 0 and 600 bytes of each run
	$(PY) -m tests.soak $(or $(ARGS),--leaks 0 600 --seconds 600 --record tests/soak/leaks.json)

.PHONY: crash-soak
crash-soak: $(VENV)/.stamp-dev ## Kill programs at every file operation, nodes at each of 60 commits, clients; cut the power at 1,000 moments
	CLEW_KILLS=1000000 CLEW_KILL_LANES=$(JOBS) CLEW_POWER_LOSS_MOMENTS=1000 CLEW_COMMIT_KILLS=300 CLEW_COMMIT_LAST=60 CLEW_WRITE_KILLS=240 \
		CLEW_WRITE_LAST=60 CLEW_ENGINE_POWER_LOSS_MOMENTS=300 CLEW_CRASH_RECORD=1 $(PY) -m pytest --timeout 7200 tests/crash $(ARGS)

.PHONY: partition-soak
partition-soak: $(VENV)/.stamp-dev ## Cut real nodes, workers, clients and PostgreSQL from each other for minutes (root; ARGS="--seconds …")
	CLEW_TEST_LONG=1 $(PY) -m pytest tests/partition
	$(PY) -m tests.partition --record $(ARGS)

PYTHONS ?= python3.12 python3.13
.PHONY: test-pythons
test-pythons: ## Replay the golden histories and test the machines on other Pythons (PYTHONS="…")
	scripts/test_pythons.sh $(PYTHONS)

.PHONY: differential
differential: $(VENV)/.stamp-dev ## Run the programs of tests/differential on the peer and here, and compare the histories
	scripts/differential.sh $(PY) $(ARGS)

.PHONY: test-unit
test-unit: $(VENV)/.stamp-dev ## Run the tests that take seconds
	$(PY) -m pytest tests/unit tests/scenarios tests/repo -m 'not slow' $(ARGS)

.PHONY: fuzz-link
fuzz-link: $(VENV)/.stamp-dev ## Feed a node's link frames at random for some minutes (EXAMPLES=…)
	CLEW_FUZZ_EXAMPLES=$(or $(EXAMPLES),20000) $(PY) -m pytest tests/link/test_bad_input.py -k 'no_frame or no_bytes' --timeout 3600

.PHONY: fuzz-http
fuzz-http: $(VENV)/.stamp-dev ## Send the HTTP API requests at random for some minutes (EXAMPLES=…)
	CLEW_FUZZ_EXAMPLES=$(or $(EXAMPLES),5000) $(PY) -m pytest tests/server/test_openapi.py -k random --timeout 3600

$(VENV)/.stamp-schema: pyproject.toml | $(VENV)/.stamp-dev
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@touch $@

.PHONY: fuzz-http-schema
fuzz-http-schema: $(VENV)/.stamp-schema ## Ask a node what its OpenAPI document allows and forbids, with Schemathesis (ARGS="--seconds …")
	$(PY) -m tests.fuzz.http_schema $(ARGS)

.PHONY: lint
lint: $(VENV)/.stamp-dev ## Check style and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=src $(BIN)/lint-imports
	$(PY) -m scripts.long_files

.PHONY: types
types: $(VENV)/.stamp-dev ## Check types with mypy and pyright
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(PY)

.PHONY: check
check: lint types test ## Everything a change has to pass

FUZZ_EXAMPLES ?= 20000
.PHONY: fuzz
fuzz: $(VENV)/.stamp-dev ## Feed every reader of outside bytes what no one should send (FUZZ_EXAMPLES=…)
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(PY) -m pytest --timeout 0 tests/fuzz $(ARGS)

# atheris has wheels for few Pythons, so it is no part of the development tools.
.PHONY: fuzz-coverage
fuzz-coverage: $(VENV)/.stamp-dev ## Fuzz every reader led by coverage, minutes each (ARGS="--seconds 120 --only cron")
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[fuzz-coverage]'
	$(PY) -m tests.fuzz.coverage $(ARGS)

.PHONY: sbom
sbom: ## Write a bill of materials of an installation with all extras to build/sbom.cdx.json
	scripts/sbom.sh $(PYTHON) sbom

.PHONY: audit
audit: ## Look whether any dependency has a known vulnerability
	scripts/sbom.sh $(PYTHON) audit

.PHONY: wheel
wheel: $(VENV)/.stamp-dev ## Build the wheel and run a workflow on it in a clean environment without extras
	scripts/check_wheel.sh $(PY)

# --- write ------------------------------------------------------------------------------------------------------------

.PHONY: format
format: $(VENV)/.stamp-dev ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: docs
docs: $(VENV)/.stamp-dev ## Write the generated pages again
	$(PY) -m scripts.generate_docs

.PHONY: glossary
glossary: docs ## Write docs/glossary.md again (with the other generated pages)

.PHONY: tour
tour: $(VENV)/.stamp-base ## Print every request, event and command of a small run
	$(PY) -m examples.tour $(ARGS)

.PHONY: clean
clean: ## Remove what was built and cached, and .venv
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
