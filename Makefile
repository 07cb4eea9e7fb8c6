# Two commands a newcomer needs: `make demo` and `make test`. Both work in a fresh clone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Without --no-compile pip would compile all modules of all packages; most are never imported.
PIP     = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: demo test test-all test-docs test-slow test-gpu gpu lint format bench audit docs docs-version clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# An extra of pyproject.toml. torch goes first and alone, so that nothing resolves to another build of it.
$(VENV)/.%: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) torch
	$(PIP) -e '.[$*]'
	@touch $@

demo: $(VENV)/.demo  ## the main job: theory against real gradients and the table of privacy costs, as a page in report/
	OMP_NUM_THREADS=1 $(BIN)/python -m dprmt report --out report

PYTEST  = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal
ALL     = README.md tests verify dprmt paper_figures

test: $(VENV)/.dev lint  ## lint, types, tests and doctests, one process per core
	@echo "tests: about six minutes on two cores"
	HYPOTHESIS_PROFILE=quick $(PYTEST) --quick

test-all: $(VENV)/.all lint  ## every test that needs no GPU, once; half an hour and more
	$(PYTEST) -m 'not gpu' $(ALL)

test-docs: $(VENV)/.all  ## tests of pages, figures and packaging
	$(PYTEST) --dist loadfile -m 'docs and not slow and not gpu' tests/docs tests/paper_figures paper_figures

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-slow: $(VENV)/.all  ## simulations and comparisons with other packages
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -m '(slow or peer) and not gpu' $(ALL)

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu

gpu: $(VENV)/.dev  ## all that waits for a GPU: those tests, the law of the noise, games, whole steps
	-$(BIN)/python -m pytest -m gpu
	-$(BIN)/python -m audits device
	$(BIN)/python -m benchmarks step --device cuda --shapes roberta-base llama-1b --tokens 512 2048 16384 --batch 16 --again

bench: $(VENV)/.dev  ## speed and memory, as ratios within one run
	$(BIN)/python -m benchmarks

audit: $(VENV)/.dev  ## distinguishing games against the training code, and planted bugs that they must find
	OMP_NUM_THREADS=1 $(BIN)/python -m audits

docs: $(VENV)/.all  ## the site of documents in site/, notebooks executed; a warning is an error
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/mkdocs build --site-dir site

docs-version: $(VENV)/.all  ## the site as a version beside others on the branch gh-pages: VERSION=0.1.0 ALIAS=latest
	git config user.name "docs" && git config user.email "docs@localhost"
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/mike deploy --push --update-aliases $(VERSION) $(ALIAS)
	test -z "$(ALIAS)" || $(BIN)/mike set-default --push $(ALIAS)

clean:
	rm -rf $(VENV) report site build dist *.egg-info
