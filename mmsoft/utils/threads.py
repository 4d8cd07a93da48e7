"""How threads wait for each other."""
import os


def share_cores() -> None:
    """Lets threads wait for less time before they sleep, where other processes compute already.

    Each of a network's many small steps ends when its last thread is done. The threads of GNU's OpenMP, PyTorch's,
    wait for it without giving their cores away, even to the thread they wait for. Where cores are shared, that costs
    most of the time; where they are not, to fall asleep and wake up does. The library reads its settings when torch
    is imported, so call this before. What the environment says already stays.
    """
    settings = ('GOMP_SPINCOUNT', 'OMP_WAIT_POLICY')
    if hasattr(os, 'getloadavg') and os.getloadavg()[0] > 0.5 and not any(name in os.environ for name in settings):
        os.environ['GOMP_SPINCOUNT'] = '3000'
