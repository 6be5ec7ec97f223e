# Everything a developer or CI runs. Each target sets up .venv by itself, again when the pins change.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The first import compiles a module: compiling all 21,000 takes pip longer than unpacking them.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.NOTPARALLEL:
.PHONY: help demo test test-eighth test-slow test-all ci check format bench clean browser cluster

help:
	@echo 'make demo         build a CTR network, compile it, compare plans, run its stages, show the picture'
	@echo 'make test         run the fast tests: before a commit'
	@echo 'make test-eighth  run real components, real kills and an eighth of the slow tests; EIGHTH=1 to 8, default: of the commit'
	@echo 'make test-all     run the fast tests and all slow ones: at the end of a day'
	@echo 'make ci           run all that CI runs: browser, cluster, check, test, test-eighth'
	@echo 'make browser      install Chromium for the tests of the report, where apt can'
	@echo 'make cluster      install Slurm for the tests of launch, where apt can'
	@echo 'make check        check formatting, lint, prose, types'
	@echo 'make format       rewrite the sources as `make check` wants them'
	@echo 'make bench        time whole compilations'
	@echo 'make clean        remove .venv and everything that was generated'
	@echo 'PYTHON=python3.12 chooses the interpreter, VENV=dir the environment'

demo: $(VENV)/.demo
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python tools/demo.py

# One worker a core, each with one thread: libraries that take all cores get in each other's way. Byte code is kept, as it
# is for users: every process that a test starts would compile the package again.
PYTEST := env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

# A test compiles a small program and runs it once: optimising takes longer than it saves. test-slow has jax as users have it.
QUICK_XLA := XLA_FLAGS='--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'

test: $(VENV)/.dev
	$(QUICK_XLA) $(PYTEST) -m 'not slow'

test-slow: $(VENV)/.dev
	$(PYTEST) -m slow

test-all: test test-slow

# The hash of the commit draws the eighth: eight commits run two thirds of the slow tests, the end of a day all.
EIGHTH ?= commit
test-eighth: $(VENV)/.dev
	$(PYTEST) -m slow --eighth $(EIGHTH)

# apt and pip unpack side by side.
ci:
	$(MAKE) browser cluster & apt=$$!; $(MAKE) check; checked=$$?; wait $$apt && exit $$checked
	$(MAKE) test test-eighth

# The tests of the report say that they are skipped where there is no browser; only root on Debian or Ubuntu installs one.
browser:
	@if command -v chromium > /dev/null && command -v chromedriver > /dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  export DEBIAN_FRONTEND=noninteractive; \
	  timeout 60 apt-get update -qq > /dev/null; \
	  timeout 240 apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core \
	    > /dev/null 2>&1 && exit 0; \
	fi; \
	echo 'make: no chromium and chromedriver here; the tests of the report in a browser are skipped'

# The same of what runs a printed script; tests start a controller of their own, so Debian's is not to start (RUNLEVEL).
cluster:
	@if command -v sbatch > /dev/null && [ -x /usr/sbin/slurmctld ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1; \
	  timeout 60 apt-get update -qq > /dev/null; \
	  timeout 240 apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client \
	    > /dev/null 2>&1 && exit 0; \
	fi; \
	echo 'make: no Slurm here; the tests of launch that start it are skipped'

# Each of the two type checkers takes one core.
check: $(VENV)/.dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/python tools/prose.py
	$(BIN)/mypy & mypy=$$!; $(BIN)/pyright --pythonpath $(BIN)/python; pyright=$$?; wait $$mypy && exit $$pyright

format: $(VENV)/.dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(VENV)/.dev
	$(BIN)/python tools/bench_compile.py

clean:
	rm -rf $(VENV) demo-out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -type d -name __pycache__ -prune -exec rm -rf {} +

# What is too old or missing is said in a sentence, before pip says it in a page.
$(VENV)/.created:
	@command -v $(PYTHON) > /dev/null || { echo 'make: $(PYTHON) is not installed; Debian and Ubuntu: apt install python3 python3-venv' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: $$($(PYTHON) --version) is too old, 3.11 or newer is needed; another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || \
	  { echo 'make: $(PYTHON) cannot make virtual environments; Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.created pyproject.toml constraints.txt
	$(INSTALL) -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.created pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	@touch $@
