# Two commands: `make demo` and `make test`. The first of either makes .venv and installs into it.

PYTHON ?= python3
VENV ?= .venv
export OMP_NUM_THREADS ?= 1

# Two stamps: the demo needs less than the tests.
READY := $(VENV)/.ready
READY_TO_TEST := $(VENV)/.ready-to-test

.PHONY: demo test test-all check docs notebooks golden golden-outside test-oldest test-newest test-integrations test-wheel clean help

help:
	@echo "make demo    installs into $(VENV) if need be, then: numerate run quickstart"
	@echo "make test    installs into $(VENV) if need be, then the test suite without its slowest tests"
	@echo "make test-all   the whole test suite, as CI does"
	@echo "make check   installs into $(VENV) if need be, then the linters, the type checker and the import contracts"
	@echo "make docs    builds the site, build/site/index.html"
	@echo "make notebooks   executes the notebooks in examples/ and stores their outputs"
	@echo "make golden BASE=COMMIT   compares what small recipes compute here and there, to the last bit"
	@echo "make golden-outside BASE=COMMIT   compares what 130 commands print and write here and there"
	@echo "make test-oldest   the whole test suite with the oldest versions that pyproject.toml promises, in $(VENV)-oldest"
	@echo "make test-newest   the whole test suite with the newest version of everything, in $(VENV)-newest"
	@echo "make test-integrations   the tests with lm-evaluation-harness and flash-linear-attention, in $(VENV)-integrations"
	@echo "make test-wheel   commands, scripts and plug-ins with the built wheel, for each of PYTHONS that is there"
	@echo "make clean   removes these environments; runs are left alone"

demo: $(READY)
	$(VENV)/bin/numerate run quickstart

test: $(READY_TO_TEST)
	$(VENV)/bin/python -m pytest -n 2 -m "not slow"

test-all: test
	CHECK_SHAPES=0 $(VENV)/bin/python -m pytest -n 2 -m slow

check: $(READY_TO_TEST)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

docs: $(READY)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet
	@echo "build/site/index.html is the site"

notebooks: $(READY_TO_TEST)
	$(VENV)/bin/python tools/notebooks.py

golden: $(READY_TO_TEST)
	$(VENV)/bin/python tools/golden/compare.py $(or $(BASE),$(error name the commit to compare with: make golden BASE=main))

golden-outside: $(READY_TO_TEST)
	$(VENV)/bin/python tools/golden/outside.py $(or $(BASE),$(error name the commit to compare with: make golden-outside BASE=main))

# By hand: each installs several gigabytes into an environment of its own, which can be removed afterwards.
test-oldest:
	$(PYTHON) -m venv --clear $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install -c constraints-oldest.txt -e ".[dev]"
	CHECK_SHAPES=0 $(VENV)-oldest/bin/python -m pytest -n 2

test-newest:
	$(PYTHON) -m venv --clear $(VENV)-newest
	$(VENV)-newest/bin/python -m pip install --upgrade --upgrade-strategy eager -e ".[dev]"
	CHECK_SHAPES=0 $(VENV)-newest/bin/python -m pytest -n 2

test-integrations:
	$(PYTHON) -m venv $(VENV)-integrations
	$(VENV)-integrations/bin/python -m pip install -c constraints.txt -e ".[lm-eval]" pytest pytest-xdist hypothesis einops
	$(VENV)-integrations/bin/python -m pip install --no-deps flash-linear-attention==0.6.0 fla-core==0.6.0
	CHECK_SHAPES=0 $(VENV)-integrations/bin/python -m pytest tests/integrations/test_lm_eval_model.py \
	  tests/kernels/test_flash_linear_attention.py tests/kernels/test_delta_rule.py

# Not all tests: those of what a wheel could lack or spoil, files beside the code among them.
PYTHONS ?= python3.11 python3.12 python3.13
WHEEL_TESTS := $(addprefix tests/test_,commands.py plugin.py typed_scripts.py three_ways.py show.py) \
  tests/reports

test-wheel:
	rm -rf build/wheel
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	@for python in $(PYTHONS); do \
	  $$python -c '' 2>/dev/null || { echo "$$python is not there"; continue; }; \
	  environment=$(VENV)-wheel-$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  echo "== $$environment"; \
	  $$python -m venv --clear $$environment && \
	  $$environment/bin/python -m pip install --quiet -c constraints.txt "$$(echo build/wheel/*.whl)[dev]" && \
	  $$environment/bin/python -m pip check && \
	  $$environment/bin/python -m pytest -n 2 $(WHEEL_TESTS) || exit 1; \
	done

# The stamp is newer than what decides what is installed, or the installation is done again (quickly: pip keeps what fits).
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "numerate needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo 'not there')." >&2; \
	  echo "Name another one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "'$(PYTHON) -m venv' failed: on Debian and Ubuntu it is in the package python3-venv." >&2; \
	  rm -rf $(VENV); exit 1; }
	$(VENV)/bin/python -m pip install -c constraints.txt -e .
	@touch $@

$(READY_TO_TEST): $(READY)
	$(VENV)/bin/python -m pip install -c constraints.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest $(VENV)-integrations $(VENV)-wheel-*
