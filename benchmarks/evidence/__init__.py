"""What small networks learn, and whether their attention did it: ``python -m benchmarks.evidence``.

``rows`` says what is trained, ``far`` and ``scenes`` train it, ``run`` keeps what is done, and ``store`` makes the
tables of the pages.
"""
