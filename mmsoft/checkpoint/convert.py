"""Rewriting a checkpoint under the other set of names."""
from pathlib import Path
from typing import Union

from .errors import CheckpointError
from .families import to_mmsoft, to_published
from .files import read_checkpoint, select_state_dict, write_checkpoint

CONVERSIONS = dict(mmsoft=to_mmsoft, published=to_published)


def convert_checkpoint(source: Union[str, Path],
                       target: Union[str, Path],
                       to: str = 'mmsoft',
                       force: bool = False) -> str:
    """Writes the weights of a checkpoint, head included, under our names or the published ones.

    Every tensor keeps its bits, so both directions after another give the tensors that one began with. Optimizers,
    counters and arguments of the trainer are not copied.

    Args:
        source (str or Path): A published checkpoint, one of ours or one of mmengine's.
        target (str or Path): File to write; ``.safetensors`` chooses that format, any other name ``torch.save``.
        to (str): ``'mmsoft'`` or ``'published'``.
        force (bool): Replace ``target`` if it exists.

    Returns:
        str: A sentence about what was written.

    Raises:
        CheckpointError: If ``source`` cannot be used, or ``target`` cannot be written or must not be replaced.
    """
    source, target = Path(source), Path(target)
    if target.exists() and source.exists() and target.samefile(source):
        raise CheckpointError(f'{target} is the checkpoint to convert itself; choose another name to write to.')
    if target.is_dir() or not target.parent.is_dir():
        raise CheckpointError(f'{target} cannot be written; give the name of a file in a folder that exists.')
    if target.exists() and not force:
        raise CheckpointError(f'{target} exists already; choose another name, or replace it with --force.')
    state_dict, entry = select_state_dict(read_checkpoint(source), source)
    family, converted = CONVERSIONS[to](state_dict)
    if family is None:
        raise CheckpointError(f'{source} holds another network, nothing in it matches SOFT or SimA; use one of theirs.')
    write_checkpoint(converted, target, entry='state_dict' if to == 'mmsoft' else family.entry)
    return (f'{target}: {len(converted)} tensors of {family.name} under {"published" if to == "published" else "our"} '
            f'names, from {entry or "the state dict"} of {source}')
