# Every command sets up .venv by itself, once: Python 3.11 and make are all that is needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python
# The same hypothesis examples every time; HYPOTHESIS_PROFILE=thorough make test tries many more.
export HYPOTHESIS_PROFILE ?= ci

.PHONY: help demo test mutants lint clean

help:
	@echo "make demo    build the tiny model and run the main job"
	@echo "make test    run the whole test suite"
	@echo "make mutants put known bugs into the code, one at a time, and watch a test fail"
	@echo "make lint    ruff and mypy"
	@echo "make clean   remove .venv, runs and caches"

demo: .venv/installed
	$(PY) infer.py

test: .venv/installed
	$(PY) -m pytest

mutants: .venv/installed
	$(PY) -m tests.mutants.run

lint: .venv/installed
	@$(PY) -c "import ruff, mypy" 2>/dev/null || $(PY) -m pip install --quiet -e ".[lint]"
	$(PY) -m ruff check .
	$(PY) -m mypy

.venv/installed: pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "minvenus needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	@echo "Setting up .venv with the pinned dependencies (once; torch is large, this can take a few minutes) ..."
	"$(PYTHON)" -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check -e ".[test]"
	@touch $@

clean:
	rm -rf .venv runs build *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
