"""What is trained: every method and every body of the zoo, each beside a host's backbone of about its size."""
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from mmsoft.utils import UsageError


class Backbone(NamedTuple):
    """A small backbone.

    Attributes:
        title: What to call it.
        channels: Of the maps it returns.
        dense: Its config as the backbone of a detector or segmenter.
        classifier: What is different in a classifier.
        rescales: Of the :class:`mmsoft.RescalePyramid` behind it, if all its maps have one stride.
        pooled: Whether a classifier averages its last map, because it has no class token.
    """

    title: str
    channels: Sequence[int]
    dense: Dict[str, Any]
    classifier: Dict[str, Any]
    rescales: Optional[Sequence[float]] = None
    pooled: bool = False


class Method(NamedTuple):
    """A method at a fraction of its width.

    Attributes:
        title: What to call it.
        config: The config of the zoo that it is made of.
        iterations: Length of the training, in batches of :attr:`batch_size`.
        lr: Largest learning rate.
        options: Settings of the model by dotted keys, as ``--cfg-options`` has them.
        cost: Seconds that an iteration takes on one core, to tell how long all will take.
        batch_size: Pictures in a batch.
        masks: Whether it learns masks.
        stages: Of refinement, if fewer than the published ones.
    """

    title: str
    config: str
    iterations: int
    lr: float
    options: Dict[str, Any]
    cost: float = 0.2
    batch_size: int = 8
    masks: bool = False
    stages: Optional[int] = None


class Run(NamedTuple):
    """One training: a key of :data:`METHODS` and one of :data:`BACKBONES`."""

    method: str
    backbone: str

    @property
    def name(self) -> str:
        """How its folder is called."""
        return f'{self.method}_{self.backbone}'


class Row(NamedTuple):
    """A line of the table: ours, the host's, and why ours is behind where it is."""

    ours: Run
    host: Run
    why: str = ''


DIMS, HEADS, DEPTHS = [32, 64, 128, 192], [1, 2, 4, 6], [1, 2, 2, 1]


def _soft(title: str, attention_norm: bool) -> Backbone:
    arch = dict(embed_dims=DIMS, num_heads=HEADS, depths=DEPTHS)
    cfg = dict(type='mmsoft.SOFT', arch=arch, attention_norm=attention_norm, img_size=128)
    return Backbone(title, DIMS, cfg, dict(out_type='cls_token'))


def _pvt(stages: int) -> Backbone:
    """PVTv2 of SOFT's sizes. It always has four stages; one that is not asked for is as small as can be."""
    cfg = dict(
        type='mmdet.PyramidVisionTransformerV2',
        embed_dims=DIMS[0],
        num_layers=DEPTHS,
        num_heads=HEADS[:stages] + [1] * (4 - stages),
        mlp_ratios=[4, 4, 4, 4],
        drop_path_rate=0.,
        out_indices=tuple(range(stages)))
    return Backbone('PVTv2', DIMS[:stages], cfg, {})


def _resnet(width: int) -> Backbone:
    """A ResNet-18 that starts with so many channels, 64 in the published one."""
    cfg = dict(type='mmpretrain.ResNet', depth=18, stem_channels=width, base_channels=width)
    return Backbone('ResNet-18', [width, 2 * width, 4 * width, 8 * width], cfg, {}, pooled=True)


WIDTH, HEAD_COUNT, DEPTH = 96, 4, 4


def _xcit(patch_size: int, sima: bool) -> Backbone:
    title = f'{"SimA-XCiT" if sima else "XCiT"}, patch {patch_size}'
    rescales = {16: (4, 2, 1, 0.5), 8: (2, 1, 0.5, 0.25)}[patch_size]
    if sima:
        arch = dict(
            embed_dims=WIDTH, num_heads=HEAD_COUNT, depth=DEPTH, patch_size=patch_size, gamma=1., norm_tokens=True)
        cfg = dict(type='mmsoft.SimAXCiT', arch=arch, out_indices=(0, 1, 2, 3))
        return Backbone(title, [WIDTH] * 4, cfg, dict(out_type='cls_token'), rescales)
    cfg = dict(
        type='mmpretrain.XCiT',
        embed_dims=WIDTH,
        num_heads=HEAD_COUNT,
        depth=DEPTH,
        patch_size=patch_size,
        layer_scale_init_value=1.,
        tokens_norm=True,
        cls_attn_layers=0,
        out_indices=(0, 1, 2, 3),
        out_type='featmap')
    classifier = dict(cls_attn_layers=2, out_indices=(-1, ), out_type='cls_token')
    return Backbone(title, [WIDTH] * 4, cfg, classifier, rescales)


def _deit(sima: bool) -> Backbone:
    rescales = (2, 1, 0.5, 0.25)
    if sima:
        arch = dict(embed_dims=WIDTH, num_heads=HEAD_COUNT, depth=DEPTH)
        cfg = dict(type='mmsoft.SimADeiT', arch=arch, patch_size=8, img_size=128, out_indices=(0, 1, 2, 3))
        return Backbone('SimA-DeiT, patch 8', [WIDTH] * 4, cfg, dict(out_type='cls_token', img_size=64), rescales)
    arch = dict(embed_dims=WIDTH, num_heads=HEAD_COUNT, num_layers=DEPTH, feedforward_channels=4 * WIDTH)
    cfg = dict(
        type='mmpretrain.VisionTransformer',
        arch=arch,
        patch_size=8,
        img_size=128,
        out_indices=(0, 1, 2, 3),
        out_type='featmap')
    classifier = dict(out_type='cls_token', out_indices=[DEPTH - 1], img_size=64)
    return Backbone('DeiT, patch 8', [WIDTH] * 4, cfg, classifier, rescales)


def _sima_cvt() -> Backbone:
    arch = dict(embed_dims=DIMS[:3], num_heads=HEADS[:3], depths=[1, 2, 4])
    return Backbone('SimA-CvT', DIMS[:3], dict(type='mmsoft.SimACvT', arch=arch), dict(out_type='cls_token'))


BACKBONES = dict(
    soft=_soft('SOFT', False),
    soft_norm=_soft('SOFT-Norm', True),
    sima_xcit_p16=_xcit(16, sima=True),
    sima_xcit_p8=_xcit(8, sima=True),
    sima_deit=_deit(sima=True),
    sima_cvt=_sima_cvt(),
    pvt=_pvt(4),
    pvt_3=_pvt(3),
    resnet_24=_resnet(24),
    resnet_20=_resnet(20),
    xcit_p16=_xcit(16, sima=False),
    xcit_p8=_xcit(8, sima=False),
    deit=_deit(sima=False),
)

_RPN = {
    'rpn_head.anchor_generator.scales': [4],
    'train_cfg.rpn_proposal': dict(nms_pre=400, max_per_img=100),
    'test_cfg.rpn': dict(nms_pre=200, max_per_img=50),
}
_ONE_STAGE = {'neck.num_outs': 4, 'test_cfg.nms_pre': 300}
_ANCHORS = dict(octave_base_scale=2, scales_per_octave=2, ratios=[0.6, 1.0, 1.7], strides=[8, 16, 32, 64])
_CENTRES = dict(octave_base_scale=4, strides=[8, 16, 32, 64])

METHODS = dict(
    retinanet=Method(
        'RetinaNet',
        'retinanet_soft_tiny_1x',
        900,
        2e-3, {
            **_ONE_STAGE, 'bbox_head.anchor_generator': _ANCHORS,
            'bbox_head.stacked_convs': 2,
            'bbox_head.norm_cfg': dict(type='GN', num_groups=16)
        },
        cost=0.12,
        batch_size=4),
    mask_rcnn=Method(
        'Mask R-CNN',
        'mask_rcnn_soft_tiny_1x',
        800,
        2e-3, {
            **_RPN, 'train_cfg.rcnn.sampler.num': 32,
            'roi_head.mask_head.num_convs': 2,
            'roi_head.bbox_roi_extractor.finest_scale': 28,
            'roi_head.mask_roi_extractor.finest_scale': 28,
        },
        cost=0.6,
        masks=True),
    cascade_mask_rcnn=Method(
        'Cascade Mask R-CNN',
        'cascade_mask_rcnn_soft_small_3x',
        500,
        2e-3, {
            **_RPN,
            **{f'train_cfg.rcnn.{stage}.sampler.num': 32
               for stage in range(3)},
            'roi_head.mask_head.num_convs': 2,
            'roi_head.bbox_roi_extractor.finest_scale': 28,
            'roi_head.mask_roi_extractor.finest_scale': 28,
        },
        cost=0.5,
        batch_size=4,
        masks=True),
    atss=Method(
        'ATSS',
        'atss_soft_small_3x',
        500,
        2e-3, {
            **_ONE_STAGE, 'bbox_head.anchor_generator': _CENTRES,
            'bbox_head.stacked_convs': 2
        },
        cost=0.13,
        batch_size=4),
    gfl=Method(
        'GFL',
        'gfl_soft_small_3x',
        500,
        2e-3, {
            **_ONE_STAGE, 'bbox_head.anchor_generator': _CENTRES,
            'bbox_head.stacked_convs': 2
        },
        cost=0.13,
        batch_size=4),
    sparse_rcnn=Method(
        'Sparse R-CNN',
        'sparse_rcnn_soft_small_3x',
        1000,
        1e-3, {
            'rpn_head.num_proposals': 20,
            'roi_head.bbox_roi_extractor.finest_scale': 28,
            'test_cfg.rcnn.max_per_img': 20,
        },
        cost=0.35,
        stages=3),
    upernet=Method('UperNet', 'upernet_soft_small_160k', 450, 2e-3, {}, cost=0.18, batch_size=4),
    classifier=Method('classifier', 'soft_tiny_in1k', 250, 1e-3, {}, batch_size=32),
)


METHODS['body'] = METHODS['retinanet']._replace(iterations=450)


def _row(ours: Tuple[str, str], host: str, why: str = '') -> Row:
    method, backbone = ours
    return Row(Run(method, backbone), Run(method, host), why)


ROWS = dict(
    mask_rcnn=_row(('mask_rcnn', 'soft_norm'), 'pvt'),
    retinanet=_row(('retinanet', 'soft_norm'), 'pvt'),
    upernet=_row(('upernet', 'soft_norm'), 'pvt'),
    sparse_rcnn=_row(('sparse_rcnn', 'soft_norm'), 'pvt'),
    cascade_mask_rcnn=_row(('cascade_mask_rcnn', 'soft_norm'), 'pvt'),
    atss=_row(('atss', 'soft_norm'), 'pvt'),
    gfl=_row(('gfl', 'soft_norm'), 'pvt'),
    soft=_row(('retinanet', 'soft'), 'pvt'),
    sima_xcit_p16=_row(('body', 'sima_xcit_p16'), 'xcit_p16'),
    sima_xcit_p8=_row(('body', 'sima_xcit_p8'), 'xcit_p8'),
    sima_deit=_row(('body', 'sima_deit'), 'deit'),
    sima_cvt=_row(('body', 'sima_cvt'), 'pvt_3'),
    classify_soft=_row(('classifier', 'soft'), 'resnet_24'),
    classify_soft_norm=_row(('classifier', 'soft_norm'), 'resnet_24'),
    classify_sima_xcit_p16=_row(('classifier', 'sima_xcit_p16'), 'xcit_p16'),
    classify_sima_xcit_p8=_row(('classifier', 'sima_xcit_p8'), 'xcit_p8'),
    classify_sima_deit=_row(('classifier', 'sima_deit'), 'deit'),
    classify_sima_cvt=_row(('classifier', 'sima_cvt'), 'resnet_20'),
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


def runs(rows: Dict[str, Row]) -> Sequence[Run]:
    """The trainings that rows need, each once; all of ours before the hosts'."""
    return list(dict.fromkeys([row.ours for row in rows.values()] + [row.host for row in rows.values()]))
