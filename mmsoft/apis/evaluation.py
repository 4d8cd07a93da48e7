"""What can be asked of a test besides its score, in the words of each OpenMMLab library."""

from typing import Optional

from mmengine.config import Config, ConfigDict

from ..utils import UsageError
from ..utils.config import datasets


def draw_predictions(cfg: Config, show: bool, show_dir: Optional[str], wait_time: float) -> None:
    """Changes a config so that the test draws every image, in a window for so many seconds or to a folder."""
    hook = cfg.default_hooks.visualization
    if show:
        hook.update(show=True, wait_time=wait_time)
    if cfg.default_scope == 'mmdet':
        hook.update(draw=True, test_out_dir=show_dir)
    elif cfg.default_scope == 'mmseg':
        hook.update(draw=True, interval=1)
        cfg.visualizer.save_dir = show_dir
    else:
        hook.update(enable=True, interval=1, out_dir=show_dir)


def augment_test(cfg: Config) -> None:
    """Changes a config so that the test merges predictions over several versions of an image.

    Raises:
        UsageError: If the config does not say how.
    """
    if not (cfg.get('tta_model') and cfg.get('tta_pipeline')):
        raise UsageError("--tta needs tta_model and tta_pipeline in the config; `mim test` has the library's own.")
    cfg.model = ConfigDict(dict(cfg.tta_model, module=cfg.model))
    for dataset in datasets(cfg, 'test_dataloader'):
        dataset['pipeline'] = cfg.tta_pipeline


def save_predictions(cfg: Config, out: str) -> None:
    """Changes a config so that the test saves predictions: to a .pkl file, or label maps to a folder."""
    evaluators = cfg.test_evaluator if isinstance(cfg.test_evaluator, (list, tuple)) else [cfg.test_evaluator]
    if out.endswith(('.pkl', '.pickle')):
        dump = 'DumpDetResults' if cfg.default_scope == 'mmdet' else 'DumpResults'
        cfg.test_evaluator = [*evaluators, dict(type=dump, out_file_path=out)]
    elif cfg.default_scope == 'mmseg':
        cfg.test_evaluator = [dict(one, output_dir=out, keep_results=True) for one in evaluators]
    else:
        raise UsageError(f'--out {out} is not a .pkl file; a folder is for semantic segmentation only.')
