# Every target sets itself up in .venv from nothing but Python >= 3.11 and pip; see scripts/setup.sh.
.DEFAULT_GOAL := help
.PHONY: help demo serve test check bench bench-peers bench-guard docs site lock wheel-test clean
SHELL := /bin/sh
BIN := .venv/bin
ARGS ?=
# Compiled modules are kept whatever the environment says: the suite starts thousands of Pythons,
# and pytest rewrites every test's assertions again where it may not keep them.
export PYTHONDONTWRITEBYTECODE :=

help:  ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.spark  ## two stories on a broker and Spark in a temporary directory, checked
	@$(BIN)/cordwood demo $(ARGS)

serve: .venv/.spark  ## a broker on ./data; ARGS="--kafka 127.0.0.1:9093" and the like
	@$(BIN)/cordwood serve $(ARGS)

# Unit and property tests share the cores; Spark's, and most random examples, are left to make test.
check: export HYPOTHESIS_PROFILE := quick
check: export CORDWOOD_TESTS_WITHOUT := pyspark py4j obstore deltalake isal grpc
check: .venv/.check  ## lint, types, layers, unit and property tests: under a minute
	@scripts/check.sh $(ARGS)

test: .venv/.dev  ## the whole suite: also real clients, Spark and crashes
	$(BIN)/pytest $(ARGS)

bench: .venv/.dev  ## measure ours; ARGS="codec log" chooses modules of bench/
	@$(BIN)/python -m bench $(ARGS)

# Missing peers are installed where that is allowed (root on Debian; Maven for Kafka's jars), else named.
bench-peers: .venv/.dev  ## ours beside Redis, NATS, gawk and Kafka; ARGS="--quick", ARGS="lines latency"
	@$(BIN)/python -m bench peers $(ARGS)

bench-guard: .venv/.check  ## has a hot path become dearer? instructions and CPU ratios; ARGS=--update accepts
	@$(BIN)/python -m bench.guard $(ARGS)

docs: .venv/.core  ## fill the generated parts of the documents
	@$(BIN)/python scripts/docs.py $(ARGS)

site: docs  ## the documents as a site, in site/
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'zensical>=0.0.40'
	@$(BIN)/python scripts/site.py .site
	@cd .site && ../$(BIN)/zensical build
	@rm -rf site && mv .site/site site && rm -rf .site

lock: .venv/.core  ## write requirements/dev.lock: the versions that make installs, for Python 3.11 to 3.14
	@scripts/lock.sh

# Interpreters are those on PATH and of pyenv; ARGS="/opt/python3.14/bin/python" adds others.
wheel-test: .venv/.core  ## build the wheel once, and test it on every Python from 3.11 to 3.14 that is found
	@$(BIN)/python scripts/wheel_test.py $(ARGS)

clean:  ## forget everything that can be made again
	rm -rf .venv .site build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.%: pyproject.toml requirements/dev.lock scripts/setup.sh
	@scripts/setup.sh $*
