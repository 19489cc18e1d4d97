# Each target sets itself up: nothing is needed but python3, make and git.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test quick torture lint docs wheel clean

demo: $(READY)
	$(BIN)/skipinit demo --out demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup  # two workers on two cores: more threads would only fight

quick: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup --quick  # no test that trains, starts a process, builds or draws for long

torture: $(READY)
	OMP_NUM_THREADS=1 SKIPINIT_TORTURE=$${SKIPINIT_TORTURE:-3600} $(BIN)/python -m pytest -n 2 --dist loadgroup tests/faults  # seconds

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

wheel: $(READY)
	$(BIN)/python -m build --outdir dist

# constraints.txt pins torch's exact CPU build; a bare torch would pull gigabytes of CUDA packages.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache
