"""The command lines: for each tool what arguments it takes, and the function that does the work.

Importing this module cannot fail. What a tool needs is imported only once its host libraries are known to fit.
"""
import os
import signal
import sys
import warnings
from argparse import ArgumentParser
from functools import wraps
from importlib import import_module
from threading import Timer, main_thread
from typing import Any, Callable, Optional

from ..utils import UsageError, check_hosts


def command_line(run: Callable[[], Any], when_interrupted: str = 'Interrupted.') -> int:
    """Runs a tool, and says in one sentence what its user has to mend.

    Args:
        run: The tool's work.
        when_interrupted: What to say after Ctrl-C.

    Returns:
        The exit code: what the work returns if that is a number, or else 0; 2 after a :class:`UsageError`, 130 after
        Ctrl-C.
    """
    before, sys.unraisablehook = sys.unraisablehook, _interrupt_again
    try:
        check_hosts()
        with warnings.catch_warnings(record=True):  # torch has one here that passes all filters and is not for users
            import mmengine.optim  # noqa: F401
        code = run()
    except BaseException as error:
        if _is_interrupt(error):
            print(f'\n{when_interrupted}', file=sys.stderr)
            return 130
        if isinstance(error, UsageError) and not sys.flags.dev_mode:
            print(error, file=sys.stderr)
            return 2
        raise
    finally:
        sys.unraisablehook = before
    return code if isinstance(code, int) else 0


def _is_interrupt(error: Optional[BaseException]) -> bool:
    """Whether an error is Ctrl-C, of which mmengine makes a SyntaxError while it formats a config for a checkpoint."""
    if isinstance(error, SyntaxError):
        while error is not None and not isinstance(error, KeyboardInterrupt):
            error = error.__context__
    return isinstance(error, KeyboardInterrupt)


def _interrupt_again(ignored: Any) -> None:
    """Where it removes objects, Python says what is raised and forgets it, and with it Ctrl-C.

    It is the signal that is sent again, as ``interrupt_main`` would not end what the main thread waits for.
    """
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        again = Timer(0.1, signal.pthread_kill, (main_thread().ident, signal.SIGINT))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(ignored)


def run_module(name: str, *args) -> int:
    """Runs ``main`` of a module that is a command line itself, and imports it only now.

    Args:
        name: Name of the module.
        *args: For its ``main``, which returns an exit code.

    Returns:
        The exit code.
    """
    return command_line(lambda: import_module(name).main(*args))


def tool(
    module: str, when_interrupted: str = 'Interrupted.', heeds_sigterm: bool = False
) -> Callable[[Callable], Callable[[], int]]:
    """Makes a tool of a function that adds its arguments to a parser; its docstring is what ``--help`` says.

    The tool calls the function of the same name in a module of the package, and prints the sentence that this returns.
    Its exit code is 1 if a list of what could not be done is returned, see :func:`command_line` for others. If it heeds
    SIGTERM, that is to it what Ctrl-C is.
    """

    def decorate(add_arguments: Callable[[ArgumentParser], None]) -> Callable[[], int]:

        def run() -> bool:
            parser = ArgumentParser(description=add_arguments.__doc__)
            add_arguments(parser)
            options = vars(parser.parse_args())
            if 'local_rank' in options:
                os.environ.setdefault('LOCAL_RANK', str(options.pop('local_rank')))
            if heeds_sigterm:
                signal.signal(signal.SIGTERM, signal.default_int_handler)
            result = getattr(import_module(f'mmsoft.{module}'), add_arguments.__name__)(**options)
            if isinstance(result, str):
                print(result)
            return isinstance(result, list) and bool(result)

        return wraps(add_arguments)(lambda: command_line(run, when_interrupted))

    return decorate


def _run(parser: ArgumentParser, demo_data: str) -> None:
    """The arguments that training and testing have in common."""
    from mmengine.config import DictAction
    add = parser.add_argument
    add('config', help='config file')
    add('--work-dir', help='folder for logs, checkpoints and scores (default: work_dirs/CONFIG)')
    add('--demo-data', action='store_true', help=demo_data)
    add('--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE', help='override settings of the config, as '
        'in train_dataloader.batch_size=4 or key="[(a,b),(c,d)]"; no blanks')
    add('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none', help='what starts the processes')
    add('--local_rank', '--local-rank', type=int, default=0, help='set by some launchers')


def _model(parser: ArgumentParser, checkpoint: str = 'weights of the model') -> None:
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help=checkpoint)


def _pictures(parser: ArgumentParser, results: str) -> None:
    add = parser.add_argument
    add('source', metavar='IMAGE_OR_FOLDER', help='a picture, or a folder of them with its subfolders')
    add('--out-dir', required=True, help=f'folder for {results}; nothing there is overwritten')
    add('--device', help='cpu, cuda:0, … (default: the best there is)')


@tool('apis.launch', 'Interrupted; the same command with --resume goes on.')
def train(parser: ArgumentParser) -> None:
    """Trains a detector, segmenter or classifier, whichever the config describes."""
    _run(parser, 'train on generated scenes of shapes in data/shapes, small and short enough for a CPU: 128 scenes, 2 '
         'epochs; for more, --cfg-options train_cfg.max_epochs=N (or max_iters=N) and '
         'train_dataloader.dataset.indices=None')
    add = parser.add_argument
    add('--amp', action='store_true', help='train in half precision (bfloat16 where there is one)')
    add('--auto-scale-lr', action='store_true', help='scale the learning rate with the batch size, from '
        'auto_scale_lr.base_batch_size of the config')
    add('--resume', nargs='?', const='auto', metavar='CHECKPOINT', help='go on from a checkpoint, or without one from '
        'the latest in the work directory, if there is any')
    add('--from-scratch', action='store_true', help='start from random instead of pretrained weights')


@tool('apis.launch')
def test(parser: ArgumentParser) -> None:
    """Evaluates a detector, segmenter or classifier, whichever the config describes."""
    _run(parser, 'test on generated scenes of shapes in data/shapes, as trained')
    add = parser.add_argument
    add('checkpoint', help='checkpoint file')
    add('--out', help='save predictions: to a .pkl file, or label maps of semantic segmentation to a folder')
    add('--show', action='store_true', help='show predictions in a window')
    add('--show-dir', help='save pictures of predictions to this folder; for detection it lies in WORK_DIR/TIMESTAMP')
    add('--wait-time', type=float, default=2, help='seconds for which the window shows a picture')
    add('--tta', action='store_true', help='merge predictions over several versions of each picture')


@tool('apis.launch', 'Interrupted; the same command goes on.')
def showcase(parser: ArgumentParser) -> None:
    """Trains a config on the generated shapes, evaluates it on held-out scenes, and draws what it found.

    Interrupted, the same command goes on where it stopped.
    """
    parser.add_argument('config', help='config file, such as configs/retinanet_soft_nano_shapes.py')
    parser.add_argument('--work-dir', help='folder for logs, checkpoints and the picture (default: work_dirs/CONFIG)')


@tool('apis.inference', 'Interrupted; what was done is saved.', heeds_sigterm=True)
def predict(parser: ArgumentParser) -> None:
    """Predicts what is in pictures, and draws it: boxes, masks, semantic segmentation or classes."""
    _model(parser)
    _pictures(parser, 'the results')
    add = parser.add_argument
    add('--batch-size', type=int, default=1, help='most pictures to predict at once (default: 1)')
    add('--score-thr', type=float, default=0.3, help='least score of a drawn detection (default: 0.3)')
    add('--opacity', type=float, help="of what is drawn, 0 to 1 (default: the host's)")
    add('--palette', help='coco, voc, citys or random for detection; a data set such as ade20k for segmentation '
        "(default: the model's)")
    add('--save-pred', action='store_true', help='also save COCO results, label maps or classes')
    add('--slide', action='store_true', help='slide a segmenter over pictures at their own size')


@tool('apis.inference')
def visualize(parser: ArgumentParser) -> None:
    """Draws what a network sees: its features, and the kernels of SOFT's bottleneck tokens."""
    _model(parser)
    _pictures(parser, 'a sheet of each')
    parser.add_argument('--stages', type=int, nargs='+', metavar='N', help='stages, or blocks of a body of one stride, '
                        'from 0 (default: all stages, or four blocks)')


@tool('apis.deployment.export')
def export(parser: ArgumentParser) -> None:
    """Exports a classifier, segmenter or detector whole, to ONNX or as a program of torch.export."""
    _model(parser)
    add = parser.add_argument
    add('--to', choices=['onnx', 'torch'], default='onnx', help='format (default: onnx)')
    add('--out', required=True, help='file to write, .onnx or .pt2')
    add('--size', metavar='HxW', help='the one size of images to take (default: any)')
    add('--force', action='store_true', help='replace OUT if it exists')


@tool('checkpoint')
def convert_checkpoint(parser: ArgumentParser) -> None:
    """Rewrites a checkpoint of SOFT or SimA under our names, or under the published ones; .safetensors in or out."""
    add = parser.add_argument
    add('source', metavar='SRC', help='checkpoint to read: a published one, one of ours or of mmengine')
    add('target', metavar='DST', help='file to write; .safetensors chooses that format')
    add('--to', choices=['mmsoft', 'published'], default='mmsoft', help='names to write (default: mmsoft)')
    add('--force', action='store_true', help='replace DST if it exists')
