"""The host libraries: which versions fit, and one clear sentence when one does not.

Versions are read from the installed metadata, so that looking at a library does not import it.
"""
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Dict, Optional, Tuple

from packaging.specifiers import SpecifierSet

from .errors import UsageError

# What provides a module, and the versions that fit. The maintained forks (onedl-…) have the same modules and count
# their versions on from the originals.
HOSTS: Dict[str, Dict[str, str]] = dict(
    mmengine={name: '>=0.10.0,<1.0.0' for name in ('mmengine', 'mmengine-lite', 'onedl-mmengine')},
    mmcv={name: '>=2.0.0,<2.2.0' for name in ('mmcv', 'mmcv-lite', 'onedl-mmcv')},
    mmdet={'mmdet': '>=3.1.0,<3.4.0', 'onedl-mmdetection': '>=3.1.0,<4.0.0'},
    mmseg={'mmsegmentation': '>=1.1.0,<1.3.0', 'onedl-mmsegmentation': '>=1.1.0,<2.0.0'},
    mmpretrain={'mmpretrain': '>=1.0.0,<1.3.0', 'onedl-mmpretrain': '>=1.0.0,<2.0.0'},
)
TESTED = 'mmengine 0.10.7, mmcv 2.1.0, mmdet 3.3.0, mmsegmentation 1.2.2, mmpretrain 1.2.0'
ANY_MMCV = '>=2.0.0,<3.0.0'
"""What fits all but the distributions that end their import beside an mmcv newer than the above."""
REFUSE_NEW_MMCV = ('mmdet', 'mmsegmentation')
FITTING_TRANSFORMERS = {'mmpretrain': '<4.52', 'onedl-mmpretrain': '<5'}
"""Beside newer ones mmpretrain does not import, if pycocotools is there: then it has language models. mmdet imports it
where it is installed, and mmseg imports mmdet."""


class HostError(UsageError, ImportError):
    """A host library is missing, too old or too new."""


def installed(module: str) -> Optional[Tuple[str, str]]:
    """Distribution and version that provide a host's module, by their metadata; None if there are none."""
    found = ((name, _version(name)) for name in HOSTS[module])
    return next(((name, number) for name, number in found if number), None)


def _version(distribution: str) -> Optional[str]:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _check(module: str, purpose: str, fits: Optional[str] = None) -> None:
    best, advised = next(iter(HOSTS[module].items()))
    remedy = f'install "{best}{advised}" (tested together: {TESTED})'
    found = installed(module)
    if found is None:
        if find_spec(module) is None:
            raise HostError(f'{purpose} needs {module}, which is not installed: {remedy}.')
        return  # a source tree on the path has no metadata to judge it by
    name, number = found
    for limit, fault in zip((fits or HOSTS[module][name]).split(','), ('old', 'new')):
        if not SpecifierSet(limit).contains(number, prereleases=True):
            raise HostError(f'{purpose} does not work with {name} {number}, which is too {fault}: {remedy}.')


def check_hosts(purpose: str = 'mmsoft') -> None:
    """Checks mmengine and mmcv, which everything needs.

    Raises:
        HostError: If one is missing, too old or too new.
    """
    _check('mmengine', purpose)
    _check('mmcv', purpose, ANY_MMCV)


def require_host(module: str, purpose: str = 'mmsoft') -> None:
    """Checks that a host library is there and can be used, before something is imported from it.

    Args:
        module (str): Name of its module, such as ``'mmdet'``.
        purpose (str): What needs it, as the subject of the sentence. Defaults to ``'mmsoft'``.

    Raises:
        HostError: If it is missing, too old or too new, if it does not work with the installed mmcv or transformers, or
            if mmdet would miss mmcv's compiled operators.
    """
    _check(module, purpose)
    found = installed(module)
    _check('mmcv', purpose, None if found and found[0] in REFUSE_NEW_MMCV else ANY_MMCV)
    if module == 'mmdet' and find_spec('mmcv._ext') is None:
        raise HostError(f'{purpose} needs mmcv with compiled operators for mmdet, and the installed mmcv has none: '
                        f'replace it by mmcv==2.1.0 (tested together: {TESTED}).')
    _check_transformers(module, purpose)


def _check_transformers(module: str, purpose: str) -> None:
    found, transformers = installed('mmpretrain'), _version('transformers')
    if not (found and transformers and _version('pycocotools')) or (module == 'mmseg' and not installed('mmdet')):
        return
    name, number = found
    fits = FITTING_TRANSFORMERS[name]
    if not SpecifierSet(fits).contains(transformers, prereleases=True):
        raise HostError(f'{purpose} needs {module}, but {name} {number} does not import beside transformers '
                        f'{transformers}: install "transformers{fits}", or remove either.')
