# Two commands a newcomer needs: `make demo` and `make test`. Both work in a fresh clone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP     = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow test-share test-gpu gpu lint format bench audit docs docs-version clean

$(VENV)/.base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

# torch goes first and alone, so that nothing resolves to another build of it.
$(VENV)/.dev: $(VENV)/.base
	$(PIP) torch
	$(PIP) -e '.[dev,demo]'
	@touch $@

$(VENV)/.demo: $(VENV)/.base
	$(PIP) torch
	$(PIP) -e '.[demo]'
	@touch $@

demo: $(VENV)/.demo  ## the main job: theory against real gradients and the table of privacy costs, as a page in report/
	OMP_NUM_THREADS=1 $(BIN)/python -m dprmt report --out report

test: $(VENV)/.dev lint  ## lint, types, tests and doctests, one process per core (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-slow: $(VENV)/.dev  ## simulations and comparisons with other packages
	$(BIN)/python -m pytest -m '(slow or peer) and not gpu'

test-share: $(VENV)/.dev  ## four minutes of one core of them, drawn by the commit; a file in one process: it may build the package
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile -m '(slow or peer) and not gpu' --share 240

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu

gpu: $(VENV)/.dev  ## all that waits for a GPU: those tests, the law of the noise, games, whole steps
	$(BIN)/python -m benchmarks.gpu

bench: $(VENV)/.dev  ## speed and memory, as ratios within one run
	$(BIN)/python -m benchmarks

audit: $(VENV)/.dev  ## distinguishing games against the training code, and planted bugs that they must find
	OMP_NUM_THREADS=1 $(BIN)/python -m audits

docs: $(VENV)/.dev  ## the site of documents in site/, notebooks executed; a warning is an error
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/mkdocs build --site-dir site

docs-version: $(VENV)/.dev  ## the site as a version beside others on the branch gh-pages: VERSION=0.1.0 ALIAS=latest
	git config user.name "docs" && git config user.email "docs@localhost"
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/mike deploy --push --update-aliases $(VERSION) $(ALIAS)
	test -z "$(ALIAS)" || $(BIN)/mike set-default --push $(ALIAS)

clean:
	rm -rf $(VENV) report site build dist *.egg-info
