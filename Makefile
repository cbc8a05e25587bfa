# The developer's verbs. Everything runs in .venv, which `setup` makes and keeps in step with pyproject.toml.
PYTHON ?= python3
VENV := .venv
ARGS ?=

.PHONY: help setup demo test pythons test-all-pythons check format docs bench lock clean

help:
	@echo 'make setup   create .venv with everything that development needs'
	@echo 'make demo    real weights, three models on two pretended GPUs, a burst that swaps them (ARGS=--once: then end)'
	@echo 'make test    the whole test suite (ARGS="-k swap" and the like go to pytest)'
	@echo 'make test-all-pythons   the suite under each other Python 3.11 to 3.14 that is here, in environments beside .venv'
	@echo 'make pythons            those environments without the tools of development; make test imports all modules in them'
	@echo 'make check   lint, formatting, types, documents'
	@echo 'make format  let ruff put the code in shape'
	@echo 'make docs    write the tables of docs/configuration.md from the settings'
	@echo 'make lock    write requirements-dev.lock: the versions that are installed now'
	@echo 'make bench   every benchmark, against its bar (an hour, on a machine that does nothing else)'

setup: $(VENV)/.ready

# --no-compile: what is imported compiles itself, and most of what is installed never is. That saves a third of the work.
$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo '$(PYTHON) is too old: Python 3.11 or newer is needed (make PYTHON=python3.12 ...)'; exit 1; }
	@echo 'creating $(VENV) (once, about a minute) ...'
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --editable '.[embedded,dev]'
	@touch $@

demo: setup
	@$(VENV)/bin/llama-router demo $(ARGS)

# A short --basetemp: the path of a socket may have 100 bytes. What failed is left there.
test: setup
	@base=$$(mktemp -d /tmp/router.XXXXXX); \
	$(VENV)/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --basetemp $$base/t $(ARGS) && rm -rf $$base

# One environment for each other Python, named after it.
pythons: setup
	@for python in $$($(VENV)/bin/python scripts/pythons); do \
		venv=$(VENV)-$$(basename $$python | tr -d python); \
		[ -x $$venv/bin/llama-router ] || { $$python -m venv $$venv && \
			$$venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --editable .; } & \
		done; wait

test-all-pythons: setup
	@failed=; for python in $$($(VENV)/bin/python scripts/pythons); do \
		echo "--- $$python"; \
		$(MAKE) test PYTHON=$$python VENV=$(VENV)-$$(basename $$python | tr -d python) || failed="$$failed $$python"; done; \
	if [ -n "$$failed" ]; then echo "failed under:$$failed"; exit 1; fi

check: setup
	@scripts/check

format: setup
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

bench: setup
	@missed=; for bench in scripts/bench-*; do \
		echo "--- $$bench" >&2; $(VENV)/bin/python $$bench --check $(ARGS) || missed="$$missed $$bench"; done; \
	if [ -n "$$missed" ]; then echo "below a bar:$$missed" >&2; exit 1; fi

docs: setup
	@$(VENV)/bin/python scripts/docs

lock: setup
	@$(VENV)/bin/python -m pip freeze --exclude-editable > requirements-dev.lock

clean:
	rm -rf $(VENV) $(VENV)-3.* build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
