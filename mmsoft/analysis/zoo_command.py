"""The command line that counts the configs' parameters and FLOPs."""
import argparse
import sys
from pathlib import Path
from typing import List, Optional, Tuple

from mmengine.config import Config
from mmengine.hub import get_config
from mmengine.logging import MMLogger

from mmsoft.apis.cli import command_line
from mmsoft.utils.config import load_config
from mmsoft.utils.errors import UsageError
from .zoo import SHAPES, measure, published_models, score_tables, size_table


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description='Prints parameters and FLOPs of the configs beside the papers\' figures, as a Markdown table.')
    parser.add_argument('names', nargs='*', metavar='NAME',
                        help='configs whose name contains this, as in mask_rcnn, or a config of a host, as in '
                        'mmdet::atss/atss_r50_fpn_1x_coco.py (default: all of ours)')
    parser.add_argument('--backbones', action='store_true', help='classifiers alone: a backbone and a linear map')
    parser.add_argument('--shape', nargs=2, type=int, metavar=('H', 'W'),
                        help='image (default: what the papers count at, 800 1280 for detectors, 512 512 for '
                        'segmenters, 224 224 for classifiers)')
    parser.add_argument('--no-flops', action='store_true', help='leave out FLOPs, which take a minute for a detector')
    parser.add_argument('--scores', action='store_true', help='the papers\' scores alone')
    return parser.parse_args()


def print_tables(root: Path, names: List[str], backbones: bool, shape: Optional[Tuple[int, int]], no_flops: bool,
                 scores: bool) -> None:
    """Prints the tables, and on stderr what is being counted.

    Args:
        root (Path): Folder with ``configs/`` and ``model-index.yml``.
        names (list[str]): Parts of names of configs, or hosts' configs; empty for all of ours.
        backbones (bool): Whether to leave out all but classifiers.
        shape (tuple[int, int], optional): Rows and columns of the image.
        no_flops (bool): Whether to count parameters alone.
        scores (bool): Whether to print the papers' scores, and count nothing.

    Raises:
        UsageError: If no config has such a name, or the image is too small.
    """
    if shape and min(shape) < 32:
        raise UsageError('--shape needs 32 rows and columns at least.')
    published = published_models(root / 'model-index.yml')
    chosen = [path for path in sorted((root / 'configs').glob('*.py'))
              if (not names or any(name in path.stem for name in names)) and
              (not backbones or path.stem.endswith('_in1k'))]
    hosts = {name: _host_config(name) for name in names if '::' in name}
    if not chosen and not hosts:
        raise UsageError(f'No config is called {" or ".join(names)}; they are in {root / "configs"}.')
    if scores:
        print(score_tables({path.stem: published[path.stem] for path in chosen if path.stem in published}))
        return
    MMLogger.get_instance('zoo', log_level='ERROR')  # of what mmengine says of initial weights
    sizes = {}
    for name in [*(path.stem for path in chosen), *hosts]:
        print(f'{name} …', file=sys.stderr, flush=True)
        cfg = hosts.get(name) or load_config(str(root / f'configs/{name}.py'))
        sizes[name] = shape or SHAPES[cfg.default_scope], measure(cfg, shape, not no_flops)
    print(size_table(sizes, published))


def _host_config(name: str) -> Config:
    try:
        return get_config(name)
    except Exception as error:  # whatever mmengine says of a package or a file that is not there
        raise UsageError(f'{name} is no config of an installed host ({error}).') from error


def main(root: Path) -> int:
    """Runs the command line.

    Args:
        root (Path): Folder with ``configs/`` and ``model-index.yml``.

    Returns:
        int: Exit code.
    """
    options = vars(parse_args())
    return command_line(lambda: print_tables(root, **options), 'Interrupted.')
