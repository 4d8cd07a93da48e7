"""What small networks learn, and whether their attention did it: ``python -m benchmarks.evidence``.

``rows`` says what is trained; ``far``, ``scenes`` and ``closing`` train it; ``store`` makes the tables of the pages.
"""
