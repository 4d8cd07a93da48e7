"""What is trained: methods, and rows of a method, our network and one to compare it with."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from mmsoft.utils import UsageError

from .networks import COMPARED

SHAPES = dict(train=1800, val=200, portraits=2400, size=128, portrait_size=64, seed=0)
"""Of :func:`mmsoft.datasets.shapes.ensure_shapes`."""


class Method(NamedTuple):
    """A method at a fraction of its width.

    Attributes:
        title: Its name in tables.
        config: The config that it is made of.
        iterations: Length of the training, in batches of :attr:`batch_size`.
        options: Settings of the model by dotted keys, as ``--cfg-options`` has them.
        batch_size: Images in a batch.
        lr: Maximum of the learning rate.
        kind: ``'detectors'``, ``'segmenters'`` or ``'classifiers'``.
        pretrained: The method whose training of the same network it starts from.
    """

    title: str
    config: str
    iterations: int
    options: dict[str, Any] = {}
    batch_size: int = 8
    lr: float = 2e-3
    kind: str = 'detectors'
    pretrained: Optional[str] = None


class Run(NamedTuple):
    """One training: a key of :data:`METHODS`, one of :data:`NETWORKS`, and a seed."""

    method: str
    backbone: str
    seed: int = 0

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f'{self.method}_{self.backbone}' + f'_seed{self.seed}' * (self.seed > 0)

    @property
    def start(self) -> Optional['Run']:
        """The training whose weights it starts from, if any."""
        method = METHODS[self.method].pretrained
        return self._replace(method=method) if method else None


class Row(NamedTuple):
    """A line of a table: a method with our network and, in some, one of an OpenMMLab library beside it."""

    method: str
    ours: str
    theirs: Optional[str] = None

    def runs(self, seed: int = 0) -> list[Run]:
        """Its trainings, ours first."""
        return [Run(self.method, network, seed) for network in self[1:] if network]


_BOXES = {
    'rpn_head.anchor_generator.scales': [4],
    'train_cfg.rpn_proposal': dict(nms_pre=400, max_per_img=100),
    'test_cfg.rpn': dict(nms_pre=200, max_per_img=50),
    'roi_head.bbox_roi_extractor.finest_scale': 28,
}
_MASKS = {**_BOXES, 'roi_head.mask_head.num_convs': 2, 'roi_head.mask_roi_extractor.finest_scale': 28}
_MASK_RCNN = {**_MASKS, 'train_cfg.rcnn.sampler.num': 32}
_CASCADE = {**_MASKS, **{f'train_cfg.rcnn.{stage}.sampler.num': 32 for stage in range(3)}}
_SPARSE = {
    'rpn_head.num_proposals': 20,
    'roi_head.num_stages': 3,
    'roi_head.bbox_roi_extractor.finest_scale': 28,
    'test_cfg.rcnn.max_per_img': 20,
}
_ONE_STAGE = {'neck.num_outs': 4, 'test_cfg.nms_pre': 300, 'bbox_head.stacked_convs': 2}
_CENTRES = {**_ONE_STAGE, 'bbox_head.anchor_generator': dict(octave_base_scale=4, strides=[8, 16, 32, 64])}
_RETINANET = {
    **_ONE_STAGE,
    'bbox_head.norm_cfg': dict(type='GN', num_groups=16),
    'bbox_head.anchor_generator': dict(
        octave_base_scale=2, scales_per_octave=2, ratios=[0.6, 1.0, 1.7], strides=[8, 16, 32, 64]
    ),
}

METHODS = dict(
    retinanet=Method('RetinaNet', 'retinanet_soft_tiny_1x', 900, _RETINANET, batch_size=4),
    mask_rcnn=Method('Mask R-CNN', 'mask_rcnn_soft_tiny_1x', 800, _MASK_RCNN),
    cascade_mask_rcnn=Method('Cascade Mask R-CNN', 'cascade_mask_rcnn_soft_small_3x', 500, _CASCADE, batch_size=4),
    atss=Method('ATSS', 'atss_soft_small_3x', 500, _CENTRES, batch_size=4),
    gfl=Method('GFL', 'gfl_soft_small_3x', 500, _CENTRES, batch_size=4),
    sparse_rcnn=Method('Sparse R-CNN', 'sparse_rcnn_soft_small_3x', 1000, _SPARSE, lr=1e-3),
    upernet=Method('UperNet', 'upernet_soft_small_160k', 450, batch_size=4, kind='segmenters'),
    classifier=Method('classifier', 'soft_tiny_in1k', 250, batch_size=32, lr=1e-3, kind='classifiers'),
)
_TUNED = ('retinanet', 'mask_rcnn', 'upernet')  # for an epoch, from a classifier of a quarter of the pixels
METHODS.update(
    {
        f'{name}_short': METHODS[name]._replace(iterations=METHODS[name].iterations // 2)
        for name in ('retinanet', 'mask_rcnn')
    }
)
METHODS.update(
    {
        f'tuned_{name}': METHODS[name]._replace(
            title=f'{METHODS[name].title}, one epoch',
            iterations=SHAPES['train'] // 8,
            batch_size=8,
            lr=1e-3,
            pretrained='classifier',
        )
        for name in _TUNED
    }
)
_PLAIN = dict(sima_xcit_p16='xcit_p16', sima_xcit_p8='xcit_p8', sima_deit='deit')
ROWS: dict[str, Row] = {
    **{
        method: Row(method, 'soft_norm', 'pvt')
        for method in ('mask_rcnn', 'retinanet', 'upernet', 'sparse_rcnn', 'cascade_mask_rcnn', 'atss', 'gfl')
    },
    'soft': Row('retinanet', 'soft', 'pvt'),
    **{ours: Row('retinanet_short', ours, theirs) for ours, theirs in dict(_PLAIN, sima_cvt='pvt_3').items()},
    **{
        f'classify_{ours}': Row('classifier', ours, theirs)
        for ours, theirs in dict(soft='resnet_24', soft_norm='resnet_24', **_PLAIN, sima_cvt='resnet_20').items()
    },
    **{f'classify_{ours}': Row('classifier', ours) for ours in COMPARED},
    **{f'tuned_{name}_{ours}': Row(f'tuned_{name}', ours) for name in _TUNED for ours in ('soft', 'soft_norm')},
    **{f'mask_rcnn_{ours}': Row('mask_rcnn_short', ours) for ours in ('sima_xcit_p16', 'xcit_p16')},
}


def select(names: Sequence[str]) -> dict[str, Row]:
    """Rows by their names, all of them if none is given.

    Raises:
        UsageError: If there is no row of a name.
    """
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise UsageError(f'There is no row {", ".join(unknown)}; the rows are {", ".join(ROWS)}.')
    return {name: ROWS[name] for name in names or ROWS}


def runs(rows: dict[str, Row], seed: int = 0) -> list[Run]:
    """The trainings that rows need, each once and after what it starts from."""
    wanted = (run for row in rows.values() for run in row.runs(seed))
    return list(dict.fromkeys(one for run in wanted for one in (run.start, run) if one))
