# `make help` lists the targets. Nothing but Python 3.10+ and make is needed to start with.
PYTHON ?= python3
VENV := .venv
CLASSES := $(VENV)/share/spark-classes.jsa
DEFAULTS := $(VENV)/share/hadoop-defaults.jar
BIN := $(VENV)/bin
export PYSPARK_PYTHON := $(abspath $(BIN)/python)
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

.DEFAULT_GOAL := help
.PHONY: help setup demo test conformance notebooks soak reach bench bench-peers lint format settings java clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(VENV)/.demo java ## Set up everything and run the main job on the New York flights
	$(BIN)/python -m examples.flights

test: $(CLASSES) ## Set up everything and run the tests, three at a time
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal $(ARGS)

conformance: $(CLASSES) ## Run PySpark's own state tests with this library in its operator's place
	$(BIN)/python -m pytest tests/conformance $(ARGS)

notebooks: $(VENV)/.dev java ## Run the notebooks and store their outputs in them
	$(BIN)/python -m pytest --overwrite notebooks
	$(BIN)/python tools/store_outputs.py notebooks/*.ipynb

soak: $(VENV)/.dev java ## Run the long tests: twenty kills and more
	$(BIN)/python -m pytest -m soak -o faulthandler_timeout=5400 $(ARGS)

reach: $(VENV)/.dev java ## Run the long tests with other systems: storages, brokers, tables
	$(BIN)/python -m pytest -m reach -o faulthandler_timeout=5400 $(ARGS)

bench: $(VENV)/.dev java ## Measure against PySpark's own stateful operators
	$(BIN)/python -m benchmarks $(ARGS)

bench-peers: $(VENV)/.dev .venv-flink/.done .venv-bytewax/.done java ## Measure against Flink and Bytewax
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

settings: $(VENV)/.dev ## Write the list of settings into docs/settings.md and conf/all.conf
	$(BIN)/python -m tools.write_settings

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

clean: ## Remove the environment and all that runs left behind
	rm -rf $(VENV) .venv-flink .venv-bytewax build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache spark-warehouse metastore_db
