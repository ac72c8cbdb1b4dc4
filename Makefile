# One command per intention; `make help` lists them. Stamp files keep repeated runs fast.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(firstword $(foreach v,3 3.13 3.12 3.11,$(shell command -v python$(v) >/dev/null && \
            python$(v) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo python$(v))))
VENV   := .venv
BIN    := $(VENV)/bin
LOCK   := .ci/requirements.lock
REPORTS := build/reports
PORT   ?= 9092
ARGS   ?=
JOBS   ?= 3

SOURCES := minibroker protocol tests system_tests

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

run: $(VENV)/.installed ## Start a broker on 127.0.0.1:9092 (PORT=…, ARGS="--set k=v …")
	@exec $(BIN)/minibroker start --listener PLAINTEXT://127.0.0.1:$(PORT) $(ARGS)

# Two system tests at a time leave a quarter to a third of two cores idle. Each worker takes complete files,
# because tests of a file share brokers, in the order of system_tests/conftest.py: the longest first.
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder
SYSTEM_TESTS := system_tests --ignore=system_tests/clients \
                --ignore=system_tests/attack/test_attack.py
# Exit status 5: ARGS select no test of one part. If no test ran at all, the totals fail.
NONE_SELECTED := [ $$? -eq 5 ]

# One failing suite must not hide the next, so the status is kept until the totals are told.
test: $(VENV)/.installed-dev ## Unit, contract and simulation tests, then the real clients' tests
	@mkdir -p $(REPORTS); rm -f $(REPORTS)/{tests,clients}.xml
	@.ci/toolchains
	@status=0; \
	$(BIN)/pytest tests -q -n auto --junitxml=$(REPORTS)/tests.xml $(ARGS) || status=1; \
	$(BIN)/pytest system_tests/clients -q $(PARALLEL) --junitxml=$(REPORTS)/clients.xml $(ARGS) || status=1; \
	$(BIN)/python .ci/totals.py $(REPORTS)/tests.xml $(REPORTS)/clients.xml || status=1; \
	exit $$status

system-test: $(VENV)/.installed-dev ## Whole brokers under faults; the log read by Kafka's own tools
	@mkdir -p $(REPORTS); rm -f $(REPORTS)/system*.xml
	@.ci/toolchains
	@status=0; \
	$(BIN)/pytest $(SYSTEM_TESTS) -q -m "not alone" $(PARALLEL) \
	    --junitxml=$(REPORTS)/system.xml $(ARGS) || $(NONE_SELECTED) || status=1; \
	$(BIN)/pytest $(SYSTEM_TESTS) -q -m alone \
	    --junitxml=$(REPORTS)/system-alone.xml $(ARGS) || $(NONE_SELECTED) || status=1; \
	$(BIN)/python .ci/totals.py $(REPORTS)/system.xml $(REPORTS)/system-alone.xml || status=1; \
	exit $$status

# On Linux, with what only Linux has taken away from the standard library.
LIKE_MACOS := $(BIN)/python -m system_tests.harness.like_macos
PORTABLE_TESTS := tests/runtime/test_supervisor.py tests/testing/test_fork_server.py \
                  system_tests/clients/test_records.py system_tests/clients/test_offsets.py

portable-test: $(VENV)/.installed-dev ## Clients' and the runtime's tests with the portable variants
	@mkdir -p $(REPORTS); rm -f $(REPORTS)/portable*.xml
	@status=0; \
	$(LIKE_MACOS) pytest tests/contracts tests/runtime/test_system.py -q \
	    -k "portable and not variable and not masked" -m "not linux" \
	    --junitxml=$(REPORTS)/portable-contracts.xml $(ARGS) || status=1; \
	$(LIKE_MACOS) pytest $(PORTABLE_TESTS) -q -k "not java" -m "not linux" $(PARALLEL) \
	    --junitxml=$(REPORTS)/portable.xml $(ARGS) || status=1; \
	$(BIN)/python .ci/totals.py $(REPORTS)/portable{-contracts,}.xml || status=1; \
	exit $$status

attack: $(VENV)/.installed-dev ## Attack brokers for an hour (ATTACK_S=…; ATTACK_SEED=… replays a run)
	@mkdir -p $(REPORTS); rm -f $(REPORTS)/attack*
	@status=0; \
	$(BIN)/pytest system_tests/attack/test_attack.py -q -s --junitxml=$(REPORTS)/attack.xml $(ARGS) \
	    || status=1; \
	$(BIN)/python .ci/totals.py $(REPORTS)/attack.xml || status=1; \
	exit $$status

soak: $(VENV)/.installed-dev ## Groups of every type with real clients for 22 minutes (SOAK_S=…)
	SOAK_S=$(or $(SOAK_S),1320) $(BIN)/pytest system_tests/soak -q -s $(ARGS)

client-suites: $(VENV)/.installed-dev ## The complete test suites of client libraries (ARGS=kgo: one)
	$(BIN)/python -m system_tests.suites $(ARGS)

exhibits: $(VENV)/.installed-dev ## Bugs of real clients as docs/exhibits has them (ARGS=NAME: one)
	$(BIN)/python -m system_tests.exhibits $(ARGS)

lint: $(VENV)/.installed-dev ## Style, security, types, layers, and that generated pages are current
	$(BIN)/ruff check $(SOURCES) .ci
	$(BIN)/ruff format --check $(SOURCES) .ci
	$(BIN)/mypy $(SOURCES)
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin minibroker protocol
	$(BIN)/lint-imports
	$(MAKE) docs-check

format: $(VENV)/.installed-dev ## Mend what ruff can mend
	$(BIN)/ruff check --fix $(SOURCES) .ci
	$(BIN)/ruff format $(SOURCES) .ci

PAGES := settings control-api metrics apis activity faults personas

docs: $(VENV)/.installed-dev ## Write generated pages and pictures of docs again
	@for page in $(PAGES); do \
	    $(BIN)/python -m minibroker.lab.reference $$page > docs/reference/$$page.md; done
	@$(BIN)/python .ci/pictures.py

docs-check: $(VENV)/.installed-dev
	@for page in $(PAGES); do \
	    $(BIN)/python -m minibroker.lab.reference $$page | diff -u docs/reference/$$page.md - \
	    || { echo "docs/reference/$$page.md is behind its source: run make docs" >&2; exit 1; }; done
	@$(BIN)/python .ci/pictures.py --check

screenshots: $(VENV)/.installed-dev ## Take the pictures of console and report in docs again
	@$(BIN)/python -m system_tests.console.pictures
	@$(BIN)/python -m system_tests.pipeline.pictures

# Sphinx has an environment of its own: neither the broker nor its tests need it.
SITE := build/site
SITE_BIN := build/site-venv/bin

# Diagrams are drawn in the browser by files of the site, so that pages need no network.
MERMAID := build/mermaid

site: $(SITE_BIN)/.installed $(MERMAID)/.unpacked ## The documentation as a site with search, in build/site; links are checked
	@rm -rf $(SITE) build/site-pages && mkdir -p build/site-pages
	@cp -r docs/. .ci/site/index.md build/site-pages && touch build/site-pages/changelog.md
	@$(SITE_BIN)/sphinx-build -q -W --keep-going -c .ci/site -d build/site-doctrees \
	    build/site-pages $(SITE)
	@$(PYTHON) .ci/site/check.py $(SITE)
	@echo "$(SITE)/index.html"

$(SITE_BIN)/.installed: .ci/site/requirements.lock
	@echo "installing Sphinx into build/site-venv"
	@$(PYTHON) -m venv build/site-venv
	@$(SITE_BIN)/pip install -q --disable-pip-version-check -r $<
	@touch $@

$(MERMAID)/.unpacked: .ci/site/mermaid.sha256
	@rm -rf $(MERMAID); mkdir -p $(MERMAID)/mermaid
	@package=$$(sed -E 's/.* mermaid-(.*)\.tgz/mermaid@\1/' $<); echo "fetching $$package for the site's diagrams"; \
	    (cd $(MERMAID) && npm pack --silent "$$package" >npm.out 2>&1) || { cat $(MERMAID)/npm.out >&2; \
	    echo "the site's diagrams need $$package, and npm could not fetch it" >&2; exit 1; }
	@cd $(MERMAID) && sha256sum --check --quiet $(CURDIR)/$<
	@tar --extract --gzip --file $(MERMAID)/mermaid-*.tgz --directory $(MERMAID)/mermaid --strip-components 2 \
	    --exclude '*.map' package/dist/mermaid.esm.min.mjs package/dist/chunks/mermaid.esm.min
	@rm $(MERMAID)/mermaid-*.tgz $(MERMAID)/npm.out; touch $@

bench: compiled ## Measure, beside Apache Kafka and librdkafka's mock
	$(BIN)/python -m system_tests.benchmarks $(ARGS)

# The modules of a request as machine code, beside their sources: what pip builds with
# HATCH_BUILD_HOOKS_ENABLE=1. `make` works there as here, with PYTHONPATH=build/compiled:build/compiled/protocol.
COMPILED := build/compiled
COPY_CHECKOUT := git ls-files -z --cached --others --exclude-standard | \
    tar --create --null --ignore-failed-read --files-from=- | tar --extract --directory $(COMPILED)

compiled: $(COMPILED)/.built ## A copy of the checkout with compiled modules, in build/compiled
	@$(COPY_CHECKOUT)

$(COMPILED)/.built: $(VENV)/.installed-dev $(shell find minibroker protocol -name '*.py' 2>/dev/null)
	@echo "compiling minibroker in $(COMPILED), which takes some minutes"
	@rm -rf $(COMPILED); mkdir -p $(COMPILED) .cache
	@$(COPY_CHECKOUT)
	@ln -sfn $(CURDIR)/$(VENV) $(COMPILED)/$(VENV); ln -sfn $(CURDIR)/.cache $(COMPILED)/.cache
	@cd $(COMPILED) && HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/pip wheel -q --disable-pip-version-check \
	    --no-deps --wheel-dir dist .
	@touch $@

# Tests of what the compiled modules do whose doubles replace none of their classes.
COMPILED_TESTS := tests/broker/apis tests/broker/log tests/fuzz tests/broker/network/test_tls.py \
                  --ignore=tests/broker/apis/test_single_fetch.py

test-compiled: compiled ## APIs, storage and hostile bytes with compiled modules
	@mkdir -p $(REPORTS); rm -f $(REPORTS)/compiled.xml
	@cd $(COMPILED) && PYTHONPATH=$(CURDIR)/$(COMPILED):$(CURDIR)/$(COMPILED)/protocol \
	    $(BIN)/pytest $(COMPILED_TESTS) -q -n auto \
	    --junitxml=$(CURDIR)/$(REPORTS)/compiled.xml $(ARGS)
	@$(BIN)/python .ci/totals.py $(REPORTS)/compiled.xml

# Tools of releases have an environment of their own, as nothing else needs them.
TOOLS := build/tools
DIST ?= sdist pure compiled

$(TOOLS)/.installed: .ci/tools.lock | $(BIN)/python
	@echo "installing what builds packages into $(TOOLS)"
	@$(BIN)/python -m venv --clear $(TOOLS)
	@$(TOOLS)/bin/pip install -q --disable-pip-version-check -r .ci/tools.lock
	@touch $@

dist: $(TOOLS)/.installed ## Build sdist, pure wheel and compiled wheel in dist (DIST="sdist pure")
	@$(TOOLS)/bin/python .ci/dist.py $(DIST)

executable: $(TOOLS)/.installed ## Build one executable with its own Python in dist, from its wheels
	@$(TOOLS)/bin/python .ci/executable.py

release-check: $(TOOLS)/.installed ## Try all that is in dist as a stranger (PYTHONS="python3.12 …")
	@$(TOOLS)/bin/python .ci/release_check.py $(foreach v,$(PYTHONS),--python $(v)) dist/*

# Nothing of another architecture runs here: an image is Debian's packages, wheels and what docker/Dockerfile says.
image-files: $(TOOLS)/.installed ## The files of the image, in build/image, for an engine to build it
	@$(TOOLS)/bin/python .ci/image.py

image: image-files ## Build the image minibroker for amd64 and arm64 with buildah, from the wheels in dist
	@for arch in amd64 arm64; do \
	    buildah build --quiet --layers --format docker --platform linux/$$arch --tag minibroker:$$arch \
	        --file docker/Dockerfile build/image; done
	@buildah tag minibroker:$$(dpkg --print-architecture) minibroker

image-check: $(VENV)/.installed-dev ## Run the image minibroker as its users do (ENGINE=docker IMAGE=…)
	@$(BIN)/python .ci/image_check.py

sim: $(VENV)/.installed-dev ## Tests of whole brokers on a mock clock; SEED=… repeats them
	$(BIN)/pytest tests/simulation -q $(if $(SEED),--randomly-seed=$(SEED)) $(ARGS)

sim-seeds: $(VENV)/.installed-dev ## Whole brokers under random faults; SEEDS=100 seeds from SEED=… on
	$(BIN)/python -m tests.simulation.many_seeds $(or $(SEED),$(shell date +%s)) $(or $(SEEDS),100) $(ARGS)

clean: ## Remove what tests and tools leave behind
	rm -rf build dist .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find minibroker protocol tests system_tests -name __pycache__ -prune -exec rm -rf {} +

nuke: clean ## clean, and remove the environment and downloads too
	rm -rf $(VENV) .cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "minibroker needs Python 3.11 or newer: install it, or say make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.installed: pyproject.toml $(LOCK) | $(BIN)/python
	@echo "installing minibroker into $(VENV)"
	@$(BIN)/pip install -q --disable-pip-version-check -c $(LOCK) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(LOCK) | $(BIN)/python
	@echo "installing minibroker and what its tests need into $(VENV)"
	@$(BIN)/pip install -q --disable-pip-version-check -r $(LOCK)
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@ $(VENV)/.installed

.PHONY: portable-test dist executable image-files image image-check release-check help run test system-test attack soak client-suites exhibits lint format docs docs-check screenshots site compiled test-compiled bench sim sim-seeds clean nuke
