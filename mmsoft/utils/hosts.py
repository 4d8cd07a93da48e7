"""The OpenMMLab libraries: what goes wrong when one is imported becomes one clear sentence."""

from importlib import import_module

from . import UsageError

TESTED = 'mmengine==0.10.7 mmcv==2.1.0 mmdet==3.3.0 mmsegmentation==1.2.2 mmpretrain==1.2.0'
"""Versions that work together."""


class HostError(UsageError, ImportError):
    """An OpenMMLab library is missing, or does not work with the versions of the others."""


def require_host(module: str, purpose: str = 'mmsoft') -> None:
    """Imports a library, such as ``'mmdet'``, which checks the versions of those that it builds on.

    Args:
        module: Its name in Python.
        purpose: What needs it, for the message.

    Raises:
        HostError: If it is missing, refuses the version of another one, or if mmdet misses mmcv's compiled operators.
    """
    try:
        import_module(module)
        if module == 'mmdet':
            import_module('mmcv.ops')
    except (ImportError, AssertionError) as error:
        raise HostError(
            f'{purpose} needs {module}, which cannot be imported ({" ".join(str(error).split())}). These versions work '
            f'together: mim install {TESTED}'
        ) from error
