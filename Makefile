# Every target sets itself up: the environment in .venv is built on first use and refreshed
# when pyproject.toml or constraints.txt change. Needs python3 (3.11 or newer) and make.

PYTHON  ?= python3
WORKERS ?= 2
PYTEST_ARGS ?=
BENCH ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP   := $(BIN)/python -m pip --disable-pip-version-check
# -qq: errors only; a warning about an index is not ours to fix.
PIP_INSTALL := $(PIP) install -qq --root-user-action=ignore
# Extras for users; the development environment always has them.
PROJECT := --editable '.[postgres,fast,asteval,sandbox,openai,mcp,durable,telemetry]' --group dev
# What cannot live with the rest has an environment of its own: its extras, and its tests in tests/environments.
ENVIRONMENTS := claude litellm frameworks browser docs
EXTRAS_claude := [claude,mcp]
EXTRAS_litellm := [litellm]
EXTRAS_frameworks :=
EXTRAS_browser := [openai,asteval]
COMPILED := build/compiled/site

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run docs test test-heavy test-compiled test-all check bench wheel constraints clean distclean prepared postgres podman chromium python-is-new-enough

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

run: setup ## tell the story of an agent behind a gateway, then serve the pages to look at it until Ctrl-C
	@$(BIN)/python examples/story

docs: build/envs/docs/.installed ## build the documentation as a site, build/site; a broken link or an unlisted page fails
	@build/envs/docs/bin/python -m docs.site build --html
	@echo "See build/site/index.html"

test: setup ## run the tests that need nothing but Python (under 5 minutes)
	@$(BIN)/python -m pytest -n $(WORKERS) -m "not heavy" $(PYTEST_ARGS)

# The gateway's tests on its compiled modules; `make test` runs them on the sources.
test-compiled: $(COMPILED)/.built ## run the gateway's tests on its compiled build
	@PYTHONPATH=$(COMPILED) $(BIN)/python -m pytest -n $(WORKERS) -m "not heavy and not interpreted" --no-skips $(PYTEST_ARGS) tests/wardwright tests/environments/compiled

wheel: $(COMPILED)/.built ## build the wheel whose hot modules are machine code, for this Python and this platform, into dist
	@mkdir -p dist && cp build/compiled/wheel/*.whl dist/ && ls dist/*.whl

# Installed by itself: whoever puts it first on PYTHONPATH runs it in place of the sources.
$(COMPILED)/.built: $(STAMP) hatch_build.py $(shell find src/wardwright -name '*.py')
	@echo "Compiling (two minutes)"
	@command -v cc >/dev/null || { echo "error: a C compiler is needed; install one (apt-get install gcc), then retry" >&2; exit 1; }
	@rm -rf build/compiled/wheel $(COMPILED)
	@HATCH_BUILD_HOOKS_ENABLE=1 $(PIP) wheel -qq --no-deps --build-constraint constraints.txt --wheel-dir build/compiled/wheel .
	@$(PIP_INSTALL) --no-deps --target $(COMPILED) build/compiled/wheel/*.whl
	@touch $@

# What the heavy tests need, one after the other: two installs of Debian's packages at once would refuse each other.
prepared: setup postgres podman chromium $(COMPILED)/.built $(ENVIRONMENTS:%=build/envs/%/.installed)

test-heavy: setup postgres podman ## run the tests that need servers or outside programs; a skipped one fails
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m heavy --no-skips $(PYTEST_ARGS)
	@$(MAKE) test-compiled
	@$(MAKE) $(addprefix test-env-,$(ENVIRONMENTS))

test-env-%: build/envs/%/.installed
	@build/envs/$*/bin/python -m pytest -n $(WORKERS) --no-skips $(PYTEST_ARGS) tests/environments/$*

# The pages are tried in a real browser.
test-env-browser: chromium

# Not an intermediate file, to be removed after use.
.PRECIOUS: build/envs/%/.installed

build/envs/%/.installed: pyproject.toml tests/environments/%/constraints.txt
	@echo "Setting up the environment '$*' (once)"
	@test -x build/envs/$*/bin/pip || $(PYTHON) -m venv build/envs/$*
	@build/envs/$*/bin/python -m pip install -qq --root-user-action=ignore --constraint tests/environments/$*/constraints.txt --upgrade pip
	@build/envs/$*/bin/python -m pip install -qq --root-user-action=ignore --constraint tests/environments/$*/constraints.txt \
		--editable '.$(EXTRAS_$*)' --group $*
	@touch $@

test-all: ## run every test, installing what they need; a skipped one fails
	@$(MAKE) test PYTEST_ARGS="--no-skips $(PYTEST_ARGS)"
	@$(MAKE) test-heavy

check: setup ## check format, lint, types and the import law; edits nothing
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports --no-logo --no-cache

bench: setup ## print every benchmark (one of them: make bench BENCH=name)
	@$(BIN)/python -m bench $(BENCH)

constraints: python-is-new-enough ## write constraints.txt anew from the newest versions that pyproject.toml allows
	@rm -rf build/constraints && $(PYTHON) -m venv build/constraints
	@build/constraints/bin/python -m pip install -qq --upgrade pip
	@build/constraints/bin/python -m pip install -qq $(PROJECT)
	@{ sed -n '/^#/p' constraints.txt; \
	   build/constraints/bin/python -m pip freeze --all --exclude-editable --exclude setuptools; } > build/constraints.txt
	@mv build/constraints.txt constraints.txt && rm -rf build/constraints
	@echo "constraints.txt: $$(grep -c == constraints.txt) versions pinned"

clean: ## remove caches and build output
	@rm -rf build dist .run .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## also remove the environment
	@rm -rf $(VENV)

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(MAKE) python-is-new-enough
	@echo "Setting up $(VENV) (once; again when pyproject.toml or constraints.txt change)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { \
		rm -rf $(VENV); \
		echo "error: '$(PYTHON) -m venv' failed; on Debian and Ubuntu install python3-venv, then retry" >&2; exit 1; }
	@$(PIP_INSTALL) --upgrade --constraint constraints.txt pip
	@$(PIP_INSTALL) --constraint constraints.txt --build-constraint constraints.txt $(PROJECT)
# Also where PYTHONDONTWRITEBYTECODE is set, the sources are not compiled anew by each process.
	@$(BIN)/python -m compileall -q src
	@touch $@

python-is-new-enough:
	@command -v $(PYTHON) >/dev/null || { \
		echo "error: '$(PYTHON)' not found; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: Python 3.11 or newer is needed, '$(PYTHON)' is $$($(PYTHON) --version 2>&1); name a newer one: make PYTHON=/path/to/python3" >&2; exit 1; }

# The tests start their own server from these programs; Debian's service is not used.
postgres:
	@if ls /usr/lib/postgresql/*/bin/pg_ctl >/dev/null 2>&1; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing PostgreSQL"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-upgrade --no-install-recommends postgresql >/dev/null; \
	else \
		echo "error: PostgreSQL is needed under /usr/lib/postgresql; install it (apt-get install postgresql), then retry" >&2; exit 1; \
	fi

# The sandbox tests make their image from busybox and the system's Python; no registry is asked.
podman:
	@if command -v podman >/dev/null && command -v runc >/dev/null && command -v busybox >/dev/null && test -x /usr/bin/python3; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing Podman"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-upgrade --no-install-recommends podman runc busybox-static python3 >/dev/null; \
	else \
		echo "error: Podman, runc and busybox are needed; install them (apt-get install podman runc busybox-static), then retry" >&2; exit 1; \
	fi

# The browser tests drive Debian's own browser; none is downloaded.
chromium:
	@if test -x /usr/bin/chromium; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "Installing Chromium"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-upgrade --no-install-recommends chromium >/dev/null; \
	else \
		echo "error: Chromium is needed at /usr/bin/chromium; install it (apt-get install chromium), then retry" >&2; exit 1; \
	fi
