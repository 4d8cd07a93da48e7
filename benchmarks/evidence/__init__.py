"""What the zoo's methods and bodies learn, beside the hosts' own backbones: ``tools/evidence.py``, docs/evidence.md.

``rows`` says what is trained, ``recipe`` makes a config of it, ``training`` trains one, ``command`` all of them, and
``report`` writes what came out.
"""
