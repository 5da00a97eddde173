# `make help` lists the targets. Nothing but Python 3.10+ and make is needed to start with.
PYTHON ?= python3
VENV := .venv
CLASSES := $(VENV)/share/spark-classes.jsa
DEFAULTS := $(VENV)/share/hadoop-defaults.jar
BIN := $(VENV)/bin
export PYSPARK_PYTHON := $(abspath $(BIN)/python)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
# Without it, each of a thousand worker processes of the tests compiles the library again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-further test-all hand-over conformance conformance-ci conformance-all notebooks soak reach lives simulate simulate-breaks fuzz mutate torture matrix golden bench bench-peers lint format jar settings metrics reference plots docs java clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(VENV)/.demo java ## Set up everything and run the main job on the New York flights; ARGS=--compare
	$(BIN)/python -m examples.flights $(ARGS)

test: $(CLASSES) ## Set up everything and run the tests, three at a time; eight minutes on two cores
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal $(ARGS)

test-further: $(CLASSES) ## Run the other half of them, which CI runs too; fifteen minutes
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal -m "further and not soak and not reach and not wide" $(ARGS)

test-all: $(CLASSES) ## Run them with all variants, programs, notebooks and servers; 45 minutes
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal -m "not soak and not reach" $(ARGS)

PACKED := SPARK_CONF_DIR=$(abspath tests/hand_over/packed_conf) $(BIN)/python -m pytest --numprocesses 3 --dist worksteal
# What a row is from its place in a query to the subtask and back; behind that the engine is the same.
hand-over: $(CLASSES) ## Run the suites with rows handed over as bytes: types, modes, memory, kills, parity; 14 minutes
	$(PACKED) -m "not soak and not reach" tests/query/rows tests/parity \
		tests/query/state/test_memory.py tests/query/state/test_quarantine.py tests/query/state/test_capture.py \
		tests/recovery/test_driver_kill.py tests/cluster/test_executor_loss.py tests/cluster/test_speculation.py $(ARGS)

# Each module in a process: what the sessions of one set is still there for those of the next.
MODULES ?= tests/conformance/test_*.py tests/conformance/connect/test_*.py
conformance: $(CLASSES) ## Run PySpark's own state tests with this library in its operator's place; up to an hour; MODULES=...
	for module in $(MODULES); do \
		$(BIN)/python -m pytest $$module $(ARGS) || failed=$$?; \
	done; exit $${failed:-0}

conformance-ci: ## Run those of the operator and the harness, as CI does; eight minutes
	$(MAKE) conformance MODULES="tests/conformance/test_operator.py tests/conformance/test_harness.py"

conformance-all: $(VENV)/.dev java ## Run them on each version of PySpark, and write docs/conformance.md; an hour, 4 GB
	$(BIN)/python -m tools.conformance $(ARGS)

notebooks: $(VENV)/.dev java ## Run the notebooks and store their outputs in them; three minutes
	$(BIN)/python -m pytest --overwrite notebooks
	$(BIN)/python tools/store_outputs.py notebooks/*.ipynb

# Each module in a process, of which two run at a time: what large states leave in memory and on the
# disk in memory goes with it, and so does a JVM that the system ended.
TESTS ?= tests
SOAK := $(BIN)/python -m pytest -m soak -o faulthandler_timeout=7500
soak: $(CLASSES) ## Run the long tests, twenty kills and more, two modules at a time; three hours; TESTS=tests
	tests=$$($(SOAK) --collect-only --quiet $(TESTS)) && \
		echo "$$tests" | sed -n 's/^\([^ ]*\.py\)::.*/\1/p' | sort -u | xargs -n 1 -P 2 \
		sh -c 'found=$$($(SOAK) $(ARGS) "$$0" 2>&1); code=$$?; echo "$$found"; exit $$code'

reach: $(VENV)/.dev java ## Run the long tests with other systems: storages, brokers, tables; an hour if two at a time
	$(BIN)/python -m pytest -m reach -o faulthandler_timeout=5400 $(ARGS)

WALKS ?= 1-20
lives: $(VENV)/.dev java ## Walk at random over the lives of queries on real Spark, 25 minutes; WALKS=1-20
	$(BIN)/python -m tests.lives.run $(WALKS) --jobs 3 $(ARGS)

lives-ci: ## Walk twenty of them as CI does, which begins none after 24 minutes
	$(MAKE) lives ARGS="--minutes 24"

SEEDS ?= 1-1000
simulate: $(VENV)/.dev ## Simulate histories of faults, two processes, a few minutes; SEEDS=1-1000
	$(BIN)/python -m tests.simulation.run $(SEEDS) --jobs 2 $(ARGS)

simulate-breaks: $(VENV)/.dev ## Show that the simulation finds each broken line of safety, two at a time; up to an hour
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal tests/simulation -m soak -o faulthandler_timeout=5400 $(ARGS)

EXAMPLES ?= 20000
fuzz: $(VENV)/.dev ## Feed changed files to every parser of stored bytes, half an hour; EXAMPLES=20000
	$(BIN)/python -m tests.fuzzing.run $(EXAMPLES) --results tests/fuzzing/results.json $(ARGS)

mutate: $(VENV)/.dev ## Break each line of safety, and show that a test fails; half an hour
	$(BIN)/python -m tools.mutate $(ARGS)

KILLS ?= 1000
torture: $(CLASSES) ## Kill and pause drivers, executors and workers, fill and slow the disk; four hours for KILLS=1000 faults; SEED=7
	$(BIN)/python -m tests.torture.run $(KILLS) --results tests/torture/results.json $(if $(SEED),--seed $(SEED)) $(ARGS)

matrix: $(VENV)/.dev java ## Run the fast tests on versions of Python, PySpark and packages; two hours, 10 GB
	$(BIN)/python -m tools.matrix $(ARGS)

FORMAT ?= 1
golden: $(VENV)/.dev java ## Write the golden data of a format, once for each PySpark, ten minutes; FORMAT=1
	$(BIN)/python -m tools.make_golden $(FORMAT) $(ARGS)

bench: $(VENV)/.dev java ## Measure W1 to W9 at a tenth of their size against PySpark's own operators; hours, ARGS="--workload W1" for one
	$(BIN)/python -m benchmarks $(ARGS)

bench-peers: $(VENV)/.dev .venv-flink/.done .venv-bytewax/.done java ## Measure against Flink and Bytewax; an hour or more
	$(BIN)/python -m benchmarks --peers $(ARGS)

lint: $(VENV)/.dev ## Check style, types, imports and public docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_docstrings.py

format: $(VENV)/.dev ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

jar: $(VENV)/.dev java ## Build the jar of pyspark_ckpt/local_files; needs a JDK 17
	$(BIN)/python -m tools.build_local_files_jar

settings: $(VENV)/.dev ## Write the list of settings into docs/settings.md and conf/all.conf
	$(BIN)/python -m tools.write_settings

reference: $(VENV)/.dev ## Write the pages about commands, abort reasons and errors
	$(BIN)/python -m tools.write_reference

plots: $(VENV)/.dev ## Draw the plot of the speed from the checked-in results
	$(BIN)/python -m tools.draw_speed

docs: $(VENV)/.dev ## Build the documentation as pages in build/site, and check their links
	$(BIN)/python -m sphinx -W --keep-going -q -b html -c docs . build/site
	$(BIN)/python -m tools.check_site build/site

metrics: $(VENV)/.dev ## Write the lists of metrics and counters into docs/
	$(BIN)/python -m tools.write_metrics

setup: $(VENV)/.dev java ## Set up everything for development
	@echo "Ready. Next:  source $(BIN)/activate    # Spark's Python workers then use it too"
	@echo "              python -m examples.flights    # the main job; or: make demo"
	@echo "              make test"
	@echo "Without activating:  PYSPARK_PYTHON=$(PYSPARK_PYTHON) $(BIN)/python your_job.py"

java:
	@sh tools/ensure_java.sh

$(CLASSES): $(DEFAULTS) | java
	$(BIN)/python tools/archive_classes.py $@ $(DEFAULTS)

$(DEFAULTS): $(VENV)/.dev
	$(BIN)/python tools/small_hadoop_defaults.py $@

$(VENV)/.demo: setup.cfg setup.py pyproject.toml
	sh tools/make_venv.sh $(PYTHON) $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

.venv-flink/.done:
	sh tools/make_venv.sh $(PYTHON) .venv-flink
	.venv-flink/bin/python -m pip install --quiet 'apache-flink==2.3.0'
	@touch $@

.venv-bytewax/.done:
	sh tools/make_venv.sh $(PYTHON) .venv-bytewax
	.venv-bytewax/bin/python -m pip install --quiet 'bytewax==0.21.1' 'pandas>=2.2,<3' 'pyarrow>=15' \
		|| { echo 'no Bytewax for this Python: it does not take part' >&2; rm .venv-bytewax/bin/python; }
	@touch $@

$(VENV)/.dev: setup.cfg setup.py pyproject.toml
	sh tools/make_venv.sh $(PYTHON) $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

clean: ## Remove the environment and all that runs left
	rm -rf $(VENV) .venv-flink .venv-bytewax build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache spark-warehouse metastore_db
