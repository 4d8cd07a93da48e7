"""What small networks learn, and whether their attention did it: ``python -m benchmarks.evidence``.

``rows`` lists what is trained: the far task of ``far``, the ``methods`` of the zoo by ``scenes``, and trainings that
``closing`` watches. ``store`` makes the tables of the pages.
"""
