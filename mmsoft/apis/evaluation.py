"""What can be asked of a test besides its score, in the words of each OpenMMLab library."""

from typing import Any, Optional

from mmengine.config import Config, ConfigDict

from ..utils import UsageError
from ..utils.config import datasets

TTA_MODELS = dict(
    mmdet=dict(type='DetTTAModel', tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100)),
    mmseg=dict(type='SegTTAModel'),
    mmpretrain=dict(type='AverageClsScoreTTA'),
)
"""For configs that bring no ``tta_model`` of their own."""


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

    Takes the config's ``tta_model`` and ``tta_pipeline``, or else the library's usual model and a horizontal flip.
    """
    wrapper = cfg.get('tta_model') or TTA_MODELS[cfg.default_scope]
    cfg.model = ConfigDict(dict(wrapper, module=cfg.model))
    for key, dataset in datasets(cfg):
        if key.startswith('test_dataloader'):
            dataset['pipeline'] = cfg.get('tta_pipeline') or _flipped(dataset['pipeline'])


def _flipped(pipeline: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A test pipeline that ends in two versions of the image: as it is, and mirrored."""
    *before, pack = pipeline
    if 'meta_keys' in pack:
        pack = dict(pack, meta_keys=(*pack['meta_keys'], 'flip', 'flip_direction'))
    flips = [dict(type='RandomFlip', prob=0.0), dict(type='RandomFlip', prob=1.0)]
    return [*before, dict(type='TestTimeAug', transforms=[flips, [pack]])]


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
