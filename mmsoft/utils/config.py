"""Reading configs and rewriting them."""
import copy
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Tuple

from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE

from . import UsageError
from .hosts import installed, require_host

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
EVALUATORS = ('val_evaluator', 'test_evaluator')
SCOPES = ('mmdet', 'mmseg', 'mmpretrain')


def load_config(path: str) -> Config:
    """Reads a config file.

    Args:
        path: A .py, .json, .yaml or .yml file.

    Raises:
        UsageError: If there is no such file, if it cannot be read as a config, or if the library whose models it
            configures is not installed.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f'There is no config {path}; the configs are in the folder configs/.')
    if file.suffix not in ('.py', '.json', '.yaml', '.yml'):
        raise UsageError(f'{path} is not a config; a config is a .py, .json or .yaml file.')
    for scope in SCOPES:
        if f'{scope}::' in file.read_text(errors='replace'):
            require_host(scope, path)
    if (installed('mmseg') or [''])[0] == 'onedl-mmsegmentation':
        MODULE2PACKAGE['mmseg'] = 'mmseg'  # mmengine looks for 'mmseg::…' in mmsegmentation, which is not its name
    try:
        cfg = Config.fromfile(path)
    except Exception as error:  # whatever is wrong in a file that is executed
        raise UsageError(f'{path} cannot be read as a config ({type(error).__name__}: {error}); --traceback shows '
                         'where it was raised.') from error
    scope = cfg.get('default_scope')
    if scope not in SCOPES:
        raise UsageError(f'{path} has default_scope={scope!r}; set it to one of {", ".join(SCOPES)}.')
    require_host(scope, path)
    return cfg


def type_name(node: Dict[str, Any]) -> str:
    """The name of what a dict builds, without its scope; empty if it builds nothing."""
    built = node.get('type', '')
    return built.rsplit('.')[-1] if isinstance(built, str) else built.__name__


def map_dicts(node: Any, function: Callable[[Dict[str, Any]], Any]) -> Any:
    """Rewrites all dicts of a part of a config, the inner ones first.

    Args:
        node: Dicts, lists and tuples in one another; it is left as it is.
        function: Takes a dict that is its own to change, and returns what shall stand in its place.

    Returns:
        The rewritten copy.
    """
    if isinstance(node, dict):
        return function({key: map_dicts(value, function) for key, value in node.items()})
    if isinstance(node, (list, tuple)):
        return type(node)(map_dicts(value, function) for value in node)
    return node


def dicts(node: Any) -> Iterator[Dict[str, Any]]:
    """All dicts of a part of a config, the outer ones first."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for value in node:
            yield from dicts(value)


def datasets(cfg: Config) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """The data sets of all loaders, without what wraps them, by the keys under which ``--cfg-options`` reaches them."""

    def unwrap(key: str, dataset: Dict[str, Any]) -> Iterator[Tuple[str, Dict[str, Any]]]:
        if 'dataset' in dataset:
            yield from unwrap(f'{key}.dataset', dataset['dataset'])
        elif 'datasets' in dataset:
            for index, inner in enumerate(dataset['datasets']):
                yield from unwrap(f'{key}.datasets.{index}', inner)
        else:
            yield key, dataset

    for loader in LOADERS:
        if cfg.get(loader):
            yield from unwrap(f'{loader}.dataset', cfg[loader]['dataset'])


def is_pretrained(init_cfg: Any) -> bool:
    """Whether a part of a config loads weights: mmengine takes the initializer's name and its class."""
    return isinstance(init_cfg, dict) and type_name(init_cfg) in ('Pretrained', 'PretrainedInit')


def without_pretrained(cfg: Config) -> Config:
    """The same training from random weights; layers and statistics that the config freezes are trained, too."""

    def forget(node: Dict[str, Any]) -> Dict[str, Any]:
        init_cfg = node.get('init_cfg')
        if isinstance(init_cfg, (list, tuple)):
            node['init_cfg'] = [one for one in init_cfg if not is_pretrained(one)] or None
        elif is_pretrained(init_cfg):
            node['init_cfg'] = None
        for key, value in dict(pretrained=None, frozen_stages=-1, norm_eval=False).items():
            if key in node:
                node[key] = value
        if type_name(node) in ('BN', 'SyncBN') and 'requires_grad' in node:
            node['requires_grad'] = True
        return node

    cfg = copy.deepcopy(cfg)
    cfg.model = map_dicts(cfg.model, forget)
    cfg.load_from = None
    return cfg
