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
.PHONY: help setup demo test test-all soak prove bench lint format pages docs java clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(VENV)/.demo java ## Set up everything and run the main job on the New York flights; ARGS=--compare
	$(BIN)/python -m examples.flights $(ARGS)

SPREAD := $(BIN)/python -m pytest --numprocesses 3 --dist worksteal
test: $(CLASSES) ## Set up everything and run the tests, three at a time; six minutes on two cores
	$(SPREAD) $(ARGS)

test-all: $(CLASSES) ## Run the slow ones too, as CI does; 25 minutes
	$(SPREAD) -m "not soak and not external" $(ARGS)

# Each module in a process, of which two run at a time: what large states leave in memory and on the
# disk in memory goes with it, and so does a JVM that the system ended.
TESTS ?= tests
SOAK := $(BIN)/python -m pytest -m soak -o faulthandler_timeout=7500
soak: $(CLASSES) ## Run the long tests, all variants and kills, two modules at a time; four hours; TESTS=tests
	tests=$$($(SOAK) --collect-only --quiet $(TESTS)) && \
		echo "$$tests" | sed -n 's/^\([^ ]*\.py\)::.*/\1/p' | sort -u | xargs -n 1 -P 2 \
		sh -c 'found=$$($(SOAK) $(ARGS) "$$0" 2>&1); code=$$?; echo "$$found"; exit $$code'

prove: $(CLASSES) ## Run a long proof, WHAT=torture ARGS="100 --seed 7"; without WHAT list them
	$(BIN)/python -m tools.prove $(WHAT) $(ARGS)

PEERS := $(if $(findstring --peers,$(ARGS)),.venv-flink/.done .venv-bytewax/.done)
bench: $(VENV)/.dev $(PEERS) java ## Measure W1 to W10 against PySpark's own operators; hours; ARGS="--workload W1", or --peers
	$(BIN)/python -m benchmarks $(ARGS)

lint: $(VENV)/.dev ## Check style, types, imports and public docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_docstrings.py

format: $(VENV)/.dev ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pages: $(VENV)/.dev ## Write what comes from the code into docs/ and conf/: settings, commands, errors, metrics, plots
	$(BIN)/python -m tools.write_settings
	$(BIN)/python -m tools.write_reference
	$(BIN)/python -m tools.write_metrics
	$(BIN)/python -m tools.draw_speed

docs: $(VENV)/.dev ## Build the documentation as pages in build/site, and check their links
	$(BIN)/python -m sphinx -W --keep-going -q -b html -c docs . build/site
	$(BIN)/python -m tools.check_site build/site

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
