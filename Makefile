# What a person types. The work is in tools/ and mmsoft/; .venv is made on the way.
#   PYTHON=python3.10 make setup    chooses the interpreter
#   make test ARGS='-k setup -x'    passes arguments on
PY := .venv/bin/python

# The lead finishes these: the commands behind train, segment and bench.
MAIN_JOB := tools/main_job.py
SEGMENT_JOB := tools/segment_job.py
BENCHMARK := tools/benchmark.py

.PHONY: setup train segment test bench zoo

setup:
	@tools/setup_env.sh

train: setup
	$(PY) $(MAIN_JOB) $(ARGS)

segment: setup
	$(PY) $(SEGMENT_JOB) $(ARGS)

test: setup
	$(PY) -m pytest $(ARGS)

bench: setup
	$(PY) $(BENCHMARK) $(ARGS)

zoo: setup
	$(PY) tools/model_table.py $(ARGS)
