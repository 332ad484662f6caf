# Every target builds the virtual environment it needs; nothing but Python 3.11+ and make has to be there.
# Paths are relative and quoted, so that the checkout may lie under a path with a space in it.

PYTHON ?= python3
VENV   ?= .venv
NVFUSER_VENV ?= .venv-nvfuser
# An index of CPU builds of torch, such as PyTorch's own (see its "get started" page); empty: pip's own index.
TORCH_INDEX ?=
# The newest torch, and the one that is installed by default: the newest where its CPU build comes quickly, from such an
# index or, on macOS, from pip's own, which for Linux has builds with CUDA alone.
NEWEST := torch==2.15.0
TORCH  ?= $(if $(or $(TORCH_INDEX),$(filter Darwin,$(shell uname -s))),$(NEWEST),torch==2.13.0)
OLDEST := torch==2.11.0
# Outside of the checkout, for they take 5 GB where their builds are ones with CUDA.
NEWEST_VENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/switchgear/venv-newest
OLDEST_VENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/switchgear/venv-oldest
PYTEST_ARGS ?= -n auto --maxprocesses=8
# Which sample of the tests beside eager the Inductor executor runs: Inductor compiles each region for a second or more.
INDUCTOR_PART ?= 0/24

PY    := "$(VENV)/bin/python"
PIP   := $(PY) -m pip install -qq --disable-pip-version-check
# What runs, and with the demo's packages, and with all that tests, lint and docs need.
BASE  := $(VENV)/.base
DEMO  := $(VENV)/.demo
STAMP := $(VENV)/.installed

# A stamp says what was installed for which folder: another torch, or a checkout that was moved, is installed anew.
$(shell [ "$$(cat "$(BASE)" 2>/dev/null)" = "$$(pwd) $(TORCH)" ] || rm -f "$(BASE)" "$(DEMO)" "$(STAMP)")

# A path from outside would come before what is installed.
unexport PYTHONPATH

define CHECK_PYTHON
@command -v "$(PYTHON)" >/dev/null || \
	    { echo "Switchgear needs Python 3.11 or newer; '$(PYTHON)' was not found. Try: make PYTHON=/path/to/python3" >&2; exit 1; }
@"$(PYTHON)" -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
	    { echo "Switchgear needs Python 3.11 or newer; '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1). Try: make PYTHON=python3.12" >&2; exit 1; }
endef

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-newest test-oldest doctor test-inductor test-triton nvfuser-env test-nvfuser lint docs format wheel-check benchmarks clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

demo: $(DEMO) ## train a small GPT-2 and a small Llama, and show what happened
	@$(PY) examples/demo.py $(DEMO_ARGS)

test: $(STAMP) ## the test suite
	@$(PY) -m pytest $(PYTEST_ARGS)

test-slow: $(STAMP) ## the test suite, long-running tests included
	@$(PY) -m pytest $(PYTEST_ARGS) -m ""

test-newest: ## an eighth of the test suite on the newest torch, in an environment of its own
	@"$(MAKE)" --no-print-directory test VENV="$(NEWEST_VENV)" TORCH="$(NEWEST)" PYTEST_ARGS='$(PYTEST_ARGS) --part 0/8'

test-oldest: ## a quarter of the Inductor executor's tests on the oldest torch, in an environment of its own
	@"$(MAKE)" --no-print-directory test VENV="$(OLDEST_VENV)" TORCH="$(OLDEST)" \
	    PYTEST_ARGS='$(PYTEST_ARGS) --part 0/4 tests/executors'

doctor: $(STAMP) ## check that Switchgear works with the installed torch
	@$(PY) -m switchgear doctor

test-inductor: $(STAMP) ## a sample of the tests beside eager, on the Inductor executor; INDUCTOR_PART=1/24 picks another
	@$(PY) -m pytest $(PYTEST_ARGS) -m "" --executors inductor,torch --part $(INDUCTOR_PART)
	@$(PY) -m tests.fuzz --executors inductor,torch --programs 60 --seed 1

test-triton: $(STAMP) ## the kernels of plugins/switchgear-triton by Triton's interpreter; downloads 280 MB
	@$(PIP) "triton>=3.2"
	@$(PY) -m pytest -n 0 tests/plugins/test_triton.py

nvfuser-env: ## an environment in which nvFuser translates: needs Python 3.12 and downloads 2.7 GB
	$(CHECK_PYTHON)
	@"$(PYTHON)" scripts/make_nvfuser_env.py "$(NVFUSER_VENV)"

test-nvfuser: nvfuser-env ## the tests that need nvFuser, and no GPU, in that environment
	@"$(NVFUSER_VENV)/bin/python" -m pytest $(PYTEST_ARGS) -m "nvfuser and not slow" tests/nvfuser

lint: $(STAMP) ## formatting, lint, types, imports and prose
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@$(PY) -c 'import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())' --no-cache
	@$(PY) -m scripts.prose

docs: $(STAMP) ## the guide and the reference, into build/site; a link that leads nowhere is an error
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict

format: $(STAMP) ## rewrite the files as `make lint` wants them
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

wheel-check: $(STAMP) ## build all wheels, install them into a clean environment, require a clean plugin report; WHEELS=FOLDER keeps them
	@$(PY) -m scripts.check_wheel --torch "$(TORCH)" --torch-index "$(TORCH_INDEX)" $(if $(WHEELS),--wheels "$(WHEELS)")

benchmarks: $(STAMP) ## every benchmark, peers side by side; takes an hour, BENCHMARK_ARGS=throughput picks
	@$(PY) -m benchmarks $(BENCHMARK_ARGS)

clean: ## remove the environment, build products and caches
	rm -rf "$(VENV)" "$(NVFUSER_VENV)" .gpu-pack build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The stamp is written last: an interrupted installation is taken up again. An environment whose Python does not start
# (moved, or its base Python is gone) is made anew. torch comes first: left to the resolver, it may be the build with CUDA.
$(BASE): pyproject.toml core/pyproject.toml
	$(CHECK_PYTHON)
	@$(PY) -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear "$(VENV)" || \
	    { echo "could not make a virtual environment: on Debian and Ubuntu, install the python3-venv package" >&2; exit 1; }
	@echo "Installing $(TORCH) and Switchgear into $(VENV); the first time, this takes some minutes."
	@{ [ -n "$(TORCH_INDEX)" ] && $(PIP) --retries 1 --index-url "$(TORCH_INDEX)" "$(TORCH)" 2>/dev/null; } || $(PIP) "$(TORCH)"
	@$(PIP) "pip>=25.1"
	@SWITCHGEAR_RELEASE=1 $(PIP) --editable core --editable .
	@echo "$$(pwd) $(TORCH)" >"$(BASE)"

$(DEMO): $(BASE)
	@$(PIP) --group demo
	@touch "$(DEMO)"

$(STAMP): $(BASE)
	@$(PIP) --group test --group dev --group docs
	@touch "$(STAMP)"
