"""What is trained: every method and every architecture, and what the papers compare with."""
from typing import Any, Dict, NamedTuple, Optional, Sequence

from mmsoft.utils import UsageError
from .backbones import BACKBONES, COMPARED

SHAPES = dict(train=1800, val=200, portraits=2400, size=128, portrait_size=64, seed=0)
"""Of :func:`mmsoft.datasets.shapes.ensure_shapes`."""


class Method(NamedTuple):
    """A method at a fraction of its width.

    Attributes:
        title: Its name in tables.
        config: The config that it is made of.
        iterations: Length of the training, in batches of :attr:`batch_size`.
        cost: Seconds of an iteration on one core, to estimate how long all will take.
        options: Settings of the model by dotted keys, as ``--cfg-options`` has them.
        batch_size: Images in a batch.
        lr: Maximum of the learning rate.
        kind: ``'detectors'``, ``'segmenters'`` or ``'classifiers'``.
        pretrained: The method whose training of the same backbone it starts from.
    """

    title: str
    config: str
    iterations: int
    cost: float
    options: Dict[str, Any] = {}
    batch_size: int = 8
    lr: float = 2e-3
    kind: str = 'detectors'
    pretrained: Optional[str] = None


class Run(NamedTuple):
    """One training: a key of :data:`METHODS`, one of :data:`BACKBONES`, and a seed."""

    method: str
    backbone: str
    seed: int = 0

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f'{self.method}_{self.backbone}' + f'_seed{self.seed}' * (self.seed > 0)


class Row(NamedTuple):
    """A line of a table: our network and, in some, one of an OpenMMLab library beside it."""

    ours: Run
    host: Optional[Run] = None

    @property
    def runs(self) -> Sequence[Run]:
        """Its trainings, ours first."""
        return [run for run in self if run]

    @property
    def title(self) -> str:
        """Title of its method."""
        return METHODS[self.ours.method].title

    @property
    def networks(self) -> Sequence[str]:
        """Titles of its backbones, ours first."""
        return [BACKBONES[run.backbone].title for run in self.runs]


_BOXES = {
    'rpn_head.anchor_generator.scales': [4],
    'train_cfg.rpn_proposal': dict(nms_pre=400, max_per_img=100),
    'test_cfg.rpn': dict(nms_pre=200, max_per_img=50),
    'roi_head.bbox_roi_extractor.finest_scale': 28,
}
_MASKS = {'roi_head.mask_head.num_convs': 2, 'roi_head.mask_roi_extractor.finest_scale': 28}
_MASK_RCNN = {**_BOXES, **_MASKS, 'train_cfg.rcnn.sampler.num': 32}
_CASCADE = {**_BOXES, **_MASKS, **{f'train_cfg.rcnn.{stage}.sampler.num': 32 for stage in range(3)}}
_SPARSE = {
    'rpn_head.num_proposals': 20,
    'roi_head.num_stages': 3,
    'roi_head.bbox_roi_extractor.finest_scale': 28,
    'test_cfg.rcnn.max_per_img': 20,
}
_ONE_STAGE = {'neck.num_outs': 4, 'test_cfg.nms_pre': 300, 'bbox_head.stacked_convs': 2}
_CENTRES = dict(_ONE_STAGE, **{'bbox_head.anchor_generator': dict(octave_base_scale=4, strides=[8, 16, 32, 64])})
_RETINANET = {
    **_ONE_STAGE,
    'bbox_head.anchor_generator': dict(
        octave_base_scale=2, scales_per_octave=2, ratios=[0.6, 1.0, 1.7], strides=[8, 16, 32, 64]),
    'bbox_head.norm_cfg': dict(type='GN', num_groups=16),
}

METHODS = dict(
    retinanet=Method('RetinaNet', 'retinanet_soft_tiny_1x', 900, 0.12, _RETINANET, batch_size=4),
    mask_rcnn=Method('Mask R-CNN', 'mask_rcnn_soft_tiny_1x', 800, 0.6, _MASK_RCNN),
    cascade_mask_rcnn=Method('Cascade Mask R-CNN', 'cascade_mask_rcnn_soft_small_3x', 500, 0.5, _CASCADE, batch_size=4),
    atss=Method('ATSS', 'atss_soft_small_3x', 500, 0.13, _CENTRES, batch_size=4),
    gfl=Method('GFL', 'gfl_soft_small_3x', 500, 0.13, _CENTRES, batch_size=4),
    sparse_rcnn=Method('Sparse R-CNN', 'sparse_rcnn_soft_small_3x', 1000, 0.35, _SPARSE, lr=1e-3),
    upernet=Method('UperNet', 'upernet_soft_small_160k', 450, 0.18, batch_size=4, kind='segmenters'),
    classifier=Method('classifier', 'soft_tiny_in1k', 250, 0.2, batch_size=32, lr=1e-3,
                      kind='classifiers'),
)
METHODS['body'] = METHODS['retinanet']._replace(iterations=450)
METHODS['mask_rcnn_short'] = METHODS['mask_rcnn']._replace(iterations=400)


def _tuned(method: Method) -> Method:
    """One epoch, from the weights of a classifier, on scenes of four times as many pixels as its images."""
    return method._replace(title=f'{method.title}, one epoch', iterations=SHAPES['train'] // 8, batch_size=8, lr=1e-3,
                           cost=method.cost * 8 / method.batch_size, pretrained='classifier')


METHODS.update({f'tuned_{name}': _tuned(METHODS[name]) for name in ('retinanet', 'mask_rcnn', 'upernet')})


def _row(method: str, ours: str, host: Optional[str] = None) -> Row:
    return Row(Run(method, ours), Run(method, host) if host else None)


ROWS = dict(
    mask_rcnn=_row('mask_rcnn', 'soft_norm', 'pvt'),
    retinanet=_row('retinanet', 'soft_norm', 'pvt'),
    upernet=_row('upernet', 'soft_norm', 'pvt'),
    sparse_rcnn=_row('sparse_rcnn', 'soft_norm', 'pvt'),
    cascade_mask_rcnn=_row('cascade_mask_rcnn', 'soft_norm', 'pvt'),
    atss=_row('atss', 'soft_norm', 'pvt'),
    gfl=_row('gfl', 'soft_norm', 'pvt'),
    soft=_row('retinanet', 'soft', 'pvt'),
    sima_xcit_p16=_row('body', 'sima_xcit_p16', 'xcit_p16'),
    sima_xcit_p8=_row('body', 'sima_xcit_p8', 'xcit_p8'),
    sima_deit=_row('body', 'sima_deit', 'deit'),
    sima_cvt=_row('body', 'sima_cvt', 'pvt_3'),
    classify_soft=_row('classifier', 'soft', 'resnet_24'),
    classify_soft_norm=_row('classifier', 'soft_norm', 'resnet_24'),
    classify_sima_xcit_p16=_row('classifier', 'sima_xcit_p16', 'xcit_p16'),
    classify_sima_xcit_p8=_row('classifier', 'sima_xcit_p8', 'xcit_p8'),
    classify_sima_deit=_row('classifier', 'sima_deit', 'deit'),
    classify_sima_cvt=_row('classifier', 'sima_cvt', 'resnet_20'),
    **{f'classify_{name}': _row('classifier', name) for name in COMPARED},
    **{f'{method}_{name}': _row(method, name)
       for method in ('tuned_retinanet', 'tuned_upernet', 'tuned_mask_rcnn') for name in ('soft', 'soft_norm')},
    **{f'mask_rcnn_{name}': _row('mask_rcnn_short', name) for name in ('sima_xcit_p16', 'xcit_p16')},
)


def select(names: Sequence[str]) -> Dict[str, Row]:
    """Rows by their names, all of them if none is given.

    Raises:
        UsageError: If there is no row of a name.
    """
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise UsageError(f'There is no row {", ".join(unknown)}; the rows are {", ".join(ROWS)}.')
    return {name: ROWS[name] for name in names or ROWS}


def runs(rows: Dict[str, Row], seed: int = 0) -> Sequence[Run]:
    """The trainings that rows need, each once and after what it starts from; all of ours before the others."""
    wanted = [run._replace(seed=seed) for column in zip(*rows.values()) for run in column if run]
    return list(dict.fromkeys(run for one in wanted for run in (start(one), one) if run))


def start(run: Run) -> Optional[Run]:
    """The training whose weights one starts from, if any."""
    method = METHODS[run.method].pretrained
    return run._replace(method=method) if method else None
