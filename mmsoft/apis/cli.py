"""The command lines: a function for each tool, which reads the arguments and calls what does the work.

Importing this module cannot fail. What a tool needs is imported only once its host libraries are known to fit.
"""
import os
import sys
import warnings
from argparse import ArgumentParser
from functools import wraps
from importlib import import_module
from typing import Any, Callable

from ..utils import UsageError, check_hosts
from ..utils.threads import share_cores


def command_line(run: Callable[[], Any], when_interrupted: str = 'Interrupted.') -> int:
    """Runs a tool, and says in one sentence what its user has to mend.

    Args:
        run: The tool's work.
        when_interrupted: What to say after Ctrl-C.

    Returns:
        The exit code: what the work returns if that is a number, or else 0; 2 after a :class:`UsageError`, 130 after
        Ctrl-C.
    """
    share_cores()
    try:
        check_hosts()
        with warnings.catch_warnings(record=True):  # torch has one here that passes all filters and is not for users
            import mmengine.optim  # noqa: F401
        code = run()
    except UsageError as error:
        if sys.flags.dev_mode:
            raise
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f'\n{when_interrupted}', file=sys.stderr)
        return 130
    return code if isinstance(code, int) else 0


def tool(when_interrupted: str = 'Interrupted.') -> Callable[[Callable[[], Any]], Callable[[], int]]:
    """Makes a function a tool, see :func:`command_line`; its docstring is what ``--help`` says."""

    def decorate(run: Callable[[], Any]) -> Callable[[], int]:
        return wraps(run)(lambda: command_line(run, when_interrupted))

    return decorate


def run_module(name: str, *args) -> int:
    """Runs ``main`` of a module that is a command line itself, and imports it only now.

    Args:
        name: Name of the module.
        *args: For its ``main``, which returns an exit code.

    Returns:
        The exit code.
    """
    return command_line(lambda: import_module(name).main(*args))


def _runs(description: str, demo_data: str) -> ArgumentParser:
    """The arguments that training and testing have in common."""
    from mmengine.config import DictAction
    parser = ArgumentParser(description=description)
    parser.add_argument('config', help='config file')
    parser.add_argument('--work-dir', help='folder for logs, checkpoints and scores (default: work_dirs/CONFIG)')
    parser.add_argument('--demo-data', action='store_true', help=demo_data)
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE', help='override settings of the config, as '
        'in train_dataloader.batch_size=4 or key="[(a,b),(c,d)]"; no blanks')
    parser.add_argument(
        '--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='what starts the processes')
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help='set by some launchers')
    return parser


def _read(parser: ArgumentParser) -> dict:
    options = vars(parser.parse_args())
    if 'local_rank' in options:
        os.environ.setdefault('LOCAL_RANK', str(options.pop('local_rank')))
    return options


@tool('Interrupted; the same command with --resume goes on.')
def train() -> None:
    """Trains a detector, segmenter or classifier, whichever the config describes."""
    parser = _runs(train.__doc__, 'train on generated scenes of shapes in data/shapes, small and short enough for a '
                   'CPU: 128 scenes, 2 epochs; for more, --cfg-options train_cfg.max_epochs=N (or max_iters=N) and '
                   'train_dataloader.dataset.indices=None')
    parser.add_argument('--amp', action='store_true', help='train in half precision (bfloat16 where there is one)')
    parser.add_argument('--auto-scale-lr', action='store_true', help='scale the learning rate with the batch size, '
                        'from auto_scale_lr.base_batch_size of the config')
    parser.add_argument('--resume', nargs='?', const='auto', metavar='CHECKPOINT', help='go on from a checkpoint, or '
                        'without one from the latest in the work directory, if there is any')
    parser.add_argument('--from-scratch', action='store_true', help='start from random instead of pretrained weights')
    options = _read(parser)
    from . import launch
    launch.train(**options)


@tool()
def test() -> None:
    """Evaluates a detector, segmenter or classifier, whichever the config describes."""
    parser = _runs(test.__doc__, 'test on generated scenes of shapes in data/shapes, as trained')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--out', help='save predictions: to a .pkl file, or label maps of semantic segmentation to a '
                        'folder')
    parser.add_argument('--show', action='store_true', help='show predictions in a window')
    parser.add_argument('--show-dir', help='save pictures of predictions to this folder; for detection it lies in '
                        'WORK_DIR/TIMESTAMP')
    parser.add_argument('--wait-time', type=float, default=2, help='seconds for which the window shows a picture')
    parser.add_argument('--tta', action='store_true', help='merge predictions over several versions of each picture')
    options = _read(parser)
    from . import launch
    launch.test(**options)


@tool('Interrupted; the same command goes on.')
def showcase() -> None:
    """Trains a config on the generated shapes, evaluates it on held-out scenes, and draws what it found.

    Interrupted, the same command goes on where it stopped.
    """
    parser = ArgumentParser(description=showcase.__doc__)
    parser.add_argument('config', help='config file, such as configs/retinanet_soft_nano_shapes.py')
    parser.add_argument('--work-dir', help='folder for logs, checkpoints and the picture (default: work_dirs/CONFIG)')
    options = _read(parser)
    from . import launch
    launch.showcase(**options)


@tool('Interrupted; what was done is saved.')
def predict() -> bool:
    """Predicts what is in pictures, and draws it: boxes, masks, semantic segmentation or classes."""
    parser = ArgumentParser(description=predict.__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='weights of the model, or what tools/export.py made of them')
    parser.add_argument('source', metavar='IMAGE_OR_FOLDER', help='a picture, or a folder of them with its subfolders')
    parser.add_argument('--out-dir', required=True, help='folder for the results; nothing there is overwritten')
    parser.add_argument('--device', help='cpu, cuda:0, … (default: the best there is)')
    parser.add_argument('--batch-size', type=int, default=1, help='most pictures to predict at once (default: 1)')
    parser.add_argument('--score-thr', type=float, default=0.3, help='least score of a drawn detection (default: 0.3)')
    parser.add_argument('--opacity', type=float, help="of what is drawn, 0 to 1 (default: the host's)")
    parser.add_argument('--palette', help='coco, voc, citys or random for detection; a data set such as ade20k for '
                        "segmentation (default: the model's)")
    parser.add_argument('--save-pred', action='store_true', help='also save COCO results, label maps or classes')
    parser.add_argument('--slide', action='store_true', help='slide a segmenter over pictures at their own size')
    options = _read(parser)
    from . import inference
    broken = inference.predict(**options)
    return bool(broken)


@tool()
def visualize() -> bool:
    """Draws what a network sees: its features, what a class depends on, and the kernels of SOFT's landmarks."""
    parser = ArgumentParser(description=visualize.__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='weights of the model')
    parser.add_argument('source', metavar='IMAGE_OR_FOLDER', help='a picture, or a folder of them with its subfolders')
    parser.add_argument('--out-dir', required=True, help='folder for a sheet of each; nothing there is overwritten')
    parser.add_argument('--stages', type=int, nargs='+', metavar='N', help='stages, or blocks of a body of one stride, '
                        'from 0 (default: all stages, or four blocks)')
    parser.add_argument('--label', help='class to explain (default: what the network is most sure of)')
    parser.add_argument('--device', help='cpu, cuda:0, … (default: the best there is)')
    options = _read(parser)
    from . import inference
    return bool(inference.visualize(**options))


@tool()
def export() -> None:
    """Exports a classifier, segmenter or detector whole, to ONNX or as a program of torch.export."""
    parser = ArgumentParser(description=export.__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='weights of the model')
    parser.add_argument('--to', choices=['onnx', 'torch'], default='onnx', help='format (default: onnx)')
    parser.add_argument('--out', required=True, help='file to write, .onnx or .pt2')
    parser.add_argument('--size', metavar='HxW', help='the one size of images to take (default: any)')
    parser.add_argument('--force', action='store_true', help='replace OUT if it exists')
    options = _read(parser)
    from .deployment import run
    print(run.export(**options))


@tool()
def convert_checkpoint() -> None:
    """Rewrites a checkpoint of SOFT or SimA under our names, or under the published ones; .safetensors in or out."""
    parser = ArgumentParser(description=convert_checkpoint.__doc__)
    parser.add_argument('source', metavar='SRC', help='checkpoint to read: a published one, one of ours or of mmengine')
    parser.add_argument('target', metavar='DST', help='file to write; .safetensors chooses that format')
    parser.add_argument('--to', choices=['mmsoft', 'published'], default='mmsoft', help='names to write '
                        '(default: mmsoft)')
    parser.add_argument('--force', action='store_true', help='replace DST if it exists')
    options = _read(parser)
    from .. import checkpoint
    print(checkpoint.convert_checkpoint(**options))
