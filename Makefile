# Two commands set everything up on a fresh machine with Python 3.11: `make run` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SOURCES := pyproject.toml $(wildcard plugins/*/pyproject.toml)
ARGS ?=
# whole runs mostly wait: more processes than cores
JOBS ?= 4
ROUNDS ?= 20
SEED ?= 1
SECONDS ?= 60
REPETITIONS ?= 200

# without bytecode on disk each command that a test starts compiles all it imports: more than half of its CPU time
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test coverage check fix audit real bench chaos fuzz constraints settings reference calibrate proof pictures docs site build clean help

help: ## what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

run: $(VENV)/.run ## set up and run the main job on the embedded engine (ARGS="..." passes words on)
	@$(BIN)/servebench $(ARGS)

test: $(VENV)/.dev ## set up what tests need and pass the default suite, without the slow tests (ARGS="-m 'slow or not slow'": all)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

coverage: $(VENV)/.dev ## all tests with their coverage, processes that they start included; fails below the floor in pyproject.toml
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m 'slow or not slow' --cov --cov-report=term $(ARGS)

check: $(VENV)/.dev ## lint, format, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(VENV)/.dev ## what lint and format can mend by themselves
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

audit: $(VENV)/.audit ## secrets in what is committed, risky calls in the code, known vulnerabilities in what is installed (ARGS=--offline: without these)
	$(BIN)/python .ci/audit.py $(ARGS)

real: $(VENV)/.dev ## tests that need a real engine
	$(BIN)/python -m pytest tests/real -m real $(ARGS)

bench: $(VENV)/.dev ## servebench measured by itself (BASE=/path/to/checkout compares the load worker with another version)
	$(if $(BASE),SERVEBENCH_BASE=$(abspath $(BASE)) )$(BIN)/python -m pytest tests/bench -m bench -s $(ARGS)

build: $(VENV)/.dev ## the wheels, in dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist . $(patsubst %/pyproject.toml,./%,$(wildcard plugins/*/pyproject.toml))

chaos: $(VENV)/.dev ## faults at random moments: kills, full disks, wedged engines, bad networks (ROUNDS=200 for more kills)
	$(BIN)/python -m pytest tests/chaos -m chaos -s --rounds=$(ROUNDS) --seed=$(SEED) $(ARGS)

fuzz: $(VENV)/.dev settings ## every setting in every form, the time of every reader, and coverage-guided fuzzing (SECONDS=60 for each target)
	$(BIN)/python -m pytest tests/fuzz/test_time.py -n $(JOBS) -m "slow or not slow" -q $(ARGS)
	@$(PIP) install --no-compile atheris
	@for target in http framing sse record answer metrics redaction; do $(BIN)/python tests/fuzz/run.py $$target $(SECONDS) || exit 1; done

constraints: $(VENV)/.dev ## write the versions that are installed, after the tests have passed with them
	$(BIN)/python .ci/constraints.py > constraints.txt

settings: $(VENV)/.dev ## every setting in every form through a simulated study (hours; COUNT=500 for a sample)
	SERVEBENCH_SETTINGS=$(or $(COUNT),0) SEED=$(SEED) $(BIN)/python -m pytest tests/fuzz/test_settings.py -q -o timeout=0

reference: $(VENV)/.run ## write the pages of the docs that list config keys, columns and warnings from the code
	$(BIN)/python .ci/reference.py

calibrate: $(VENV)/.run ## measure on simulated engines how often the conclusions are right, and write docs/calibration.md from its parts (hours; PART=aa for one; REPETITIONS=50 for less; ARGS="--only aa" prints one promise)
	-PYTHONPATH=tests $(BIN)/python -m calibration --repetitions $(REPETITIONS) --seed $(SEED) --processes $(JOBS) $(or $(ARGS),$(if $(PART),--only $(PART)) --output docs/calibration.md)

proof: $(VENV)/.run ## start real engines again and again, measure how often the conclusions on them are right, and write docs/proof.md (hours; goes on where it was stopped; ARGS="--engine vllm --minutes 30")
	PYTHONPATH=tests $(BIN)/python -m proof $(ARGS)

pictures: $(VENV)/.run ## make the pictures of the docs from real runs (needs tmux and chromium)
	$(BIN)/python .ci/pictures.py

docs: $(VENV)/.dev ## check that every command in the docs runs and every link in the repository leads somewhere
	$(BIN)/python -m pytest tests/docs -m 'slow or not slow' $(ARGS)

site: $(VENV)/.docs ## build the documentation as a site, in site/; a link or a heading that does not exist is an error
	$(BIN)/zensical build --strict --clean $(ARGS)

clean: ## remove what make made
	rm -rf $(VENV) dist build site .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/python:
	@echo "making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/python $(SOURCES)
	@echo "installing servebench, the embedded engine and MLflow (about a minute, once)"
	@$(PIP) install --no-compile -e . -e plugins/servebench-llamacpp
	@touch $@

$(VENV)/.audit: $(VENV)/.dev
	@echo "installing what the audit needs"
	@$(PIP) install --no-compile -e ".[audit]"
	@touch $@

$(VENV)/.docs: $(VENV)/.run
	@echo "installing what the site needs"
	@$(PIP) install --no-compile -e ".[docs]"
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "installing what tests and checks need"
	@$(PIP) install --no-compile -e ".[dev,dashboard]" $(foreach plugin,$(wildcard plugins/*/pyproject.toml),-e $(dir $(plugin)))
	@touch $@
