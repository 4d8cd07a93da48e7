# What a person types. The work is in tools/ and mmsoft/; .venv is made on the way.
#   PYTHON=python3.10 make setup    chooses the interpreter
#   make test ARGS='-k setup -x'    passes arguments on
PY := .venv/bin/python

DETECTOR := configs/retinanet_soft_nano_shapes.py
SEGMENTER := configs/upernet_soft_nano_shapes.py

.PHONY: setup train segment test bench zoo evidence torture

setup:
	@tools/setup_env.sh

train: setup
	$(PY) tools/showcase.py $(DETECTOR) $(ARGS)

segment: setup
	$(PY) tools/showcase.py $(SEGMENTER) $(ARGS)

test: setup
	$(PY) -m pytest $(ARGS)

bench: setup
	$(PY) tools/benchmark.py $(ARGS)

zoo: setup
	$(PY) tools/zoo.py $(ARGS)

evidence: setup
	$(PY) tools/evidence.py $(ARGS)

torture: setup
	$(PY) tools/torture.py $(ARGS)
