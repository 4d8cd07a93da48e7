"""Every family of networks whose published checkpoints are understood."""
from typing import Dict, Iterable, Optional

from .names import Family
from .soft import SOFT

FAMILIES: Dict[str, Family] = {family.name: family for family in (SOFT, )}


def published_family(names: Iterable[str]) -> Optional[Family]:
    """The family that these published names belong to, if any."""
    names = set(names)
    return next((family for family in FAMILIES.values() if family.is_published(names)), None)


def our_family(names: Iterable[str]) -> Optional[Family]:
    """The family that these names of ours, ``backbone.`` in front, belong to, if any."""
    names = set(names)
    return next((family for family in FAMILIES.values() if family.is_ours(names)), None)
