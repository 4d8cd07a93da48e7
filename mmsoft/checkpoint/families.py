"""Every family of networks whose published checkpoints are understood."""
import re
from typing import Dict, Iterable, Optional, Tuple

from .names import BACKBONE, Family, StateDict
from .sima import SIMA_CVT, SIMA_DEIT, SIMA_XCIT
from .soft import SOFT

FAMILIES: Dict[str, Family] = {family.name: family for family in (SOFT, SIMA_XCIT, SIMA_DEIT, SIMA_CVT)}


def published_family(names: Iterable[str]) -> Optional[Family]:
    """The family whose published names these are, if any."""
    names = set(names)
    return next((family for family in FAMILIES.values() if family.is_published(names)), None)


def to_mmsoft(state_dict: StateDict) -> Tuple[Optional[Family], StateDict]:
    """Names of a published or an own state dict, whole model or backbone alone, to those of a whole model of ours.

    Args:
        state_dict (dict[str, Tensor]): Tensors; ``backbone.`` may stand in front of names of either kind.

    Returns:
        tuple[Family or None, dict[str, Tensor]]: The family, None for a network that is not ours, and the tensors
        under the names ``backbone.*`` and ``head.fc.*``; names that are neither are unchanged.
    """
    # Release 0.1 had CvT's projections beside ``qkv``.
    former = re.compile(r'(\.attn)(\.[qkv]\.(conv|norm|proj)\.)')
    state_dict = {former.sub(r'\1.qkv\2', name): t for name, t in state_dict.items()}
    bare = {name[len(BACKBONE):] if name.startswith(BACKBONE) else name: t for name, t in state_dict.items()}
    family = published_family(bare)
    if family:
        return family, family.to_mmsoft(bare)
    for family in FAMILIES.values():
        if family.is_ours(state_dict):
            return family, dict(state_dict)
        whole = {BACKBONE + name: tensor for name, tensor in state_dict.items()}
        if family.is_ours(whole):
            return family, whole
    return None, dict(state_dict)


def to_published(state_dict: StateDict) -> Tuple[Optional[Family], StateDict]:
    """The inverse of :func:`to_mmsoft`: names of ours to those of the authors.

    Args:
        state_dict (dict[str, Tensor]): Tensors, of a whole model or of a backbone alone.

    Returns:
        tuple[Family or None, dict[str, Tensor]]: The family, None for a network that is not ours, and the tensors
        under published names; names without a published counterpart are unchanged.
    """
    family, ours = to_mmsoft(state_dict)
    return family, family.to_published(ours) if family else ours
