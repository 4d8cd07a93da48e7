"""Methods of the zoo, as small as they still learn on the synthetic shapes."""

from typing import Any, NamedTuple

SHAPES = dict(train=1800, val=200, portraits=2400, size=96, portrait_size=64, seed=0)
"""Of :func:`mmsoft.datasets.shapes.ensure_shapes`."""


class Method(NamedTuple):
    """A method of the zoo at a fraction of its width, on synthetic shapes.

    Attributes:
        config: The config that it is made of.
        network: A key of :data:`benchmarks.evidence.networks.NETWORKS`.
        iterations: Length of the training, in batches of :attr:`batch_size`.
        options: Settings of the model by dotted keys, as ``--cfg-options`` has them.
        batch_size: Images in a batch.
        lr: Maximum of the learning rate.
        slow: Factors of the learning rate for parameters whose names contain the keys.
        sky: Whether it detects in scenes under a sky, where classes of day and night are told by the sky alone.
    """

    config: str
    network: str = 'soft_norm'
    iterations: int = 450
    options: dict[str, Any] = {}
    batch_size: int = 8
    lr: float = 2e-3
    slow: dict[str, float] = {}
    sky: bool = True


_BOXES = {
    'rpn_head.anchor_generator.scales': [4],
    'train_cfg.rpn_proposal': dict(nms_pre=400, max_per_img=100),
    'test_cfg.rpn': dict(nms_pre=200, max_per_img=50),
    'roi_head.bbox_roi_extractor.finest_scale': 28,
}
_MASKS = {**_BOXES, 'roi_head.mask_head.num_convs': 2, 'roi_head.mask_roi_extractor.finest_scale': 28}
_ONE_STAGE = {'neck.num_outs': 4, 'test_cfg.nms_pre': 300, 'bbox_head.stacked_convs': 2}
_CENTRES = {
    **_ONE_STAGE,
    'bbox_head.anchor_generator': dict(octave_base_scale=4, strides=[8, 16, 32, 64]),
    'bbox_head.norm_cfg': dict(type='BN'),
}
# No GroupNorm: its statistics, of the whole map, would tell every place of the sky.
RETINANET = {
    **_ONE_STAGE,
    'bbox_head.type': 'RetinaSepBNHead',
    'bbox_head.num_ins': 4,
    'bbox_head.norm_cfg': dict(type='BN'),
    'bbox_head.anchor_generator': dict(
        octave_base_scale=2, scales_per_octave=2, ratios=[0.6, 1.0, 1.7], strides=[8, 16, 32, 64]
    ),
}
_NARROW = {  # Mask2Former's transformers have 64 channels, too
    f'panoptic_head.{coder}.layer_cfg.{part}.embed_dims': 64
    for coder, parts in (
        ('pixel_decoder.encoder', ('self_attn_cfg', 'ffn_cfg')),
        ('transformer_decoder', ('self_attn_cfg', 'cross_attn_cfg', 'ffn_cfg')),
    )
    for part in parts
}
METHODS = dict(
    retinanet=Method('retinanet_soft_tiny_1x', options=RETINANET),
    mask_rcnn=Method('mask_rcnn_soft_tiny_1x', options={**_MASKS, 'train_cfg.rcnn.sampler.num': 128}),
    cascade_mask_rcnn=Method(
        'cascade_mask_rcnn_soft_small_3x',
        options={**_MASKS, **{f'train_cfg.rcnn.{stage}.sampler.num': 32 for stage in range(3)}},
    ),
    atss=Method('atss_soft_small_3x', options=_CENTRES),
    gfl=Method('gfl_soft_small_3x', options=_CENTRES),
    rtmdet=Method(
        'rtmdet_soft_small_100e',
        iterations=900,
        options={
            'neck.num_csp_blocks': 1,
            'bbox_head.norm_cfg': dict(type='BN', _delete_=True),
            'bbox_head.anchor_generator.strides': [4, 8, 16],
            'bbox_head.stacked_convs': 2,
            'test_cfg.nms_pre': 300,
            'data_preprocessor.batch_augments': None,
            'data_preprocessor.pad_size_divisor': 32,
        },
    ),
    sparse_rcnn=Method(
        'sparse_rcnn_soft_small_3x',
        options={
            'rpn_head.num_proposals': 20,
            'roi_head.num_stages': 3,
            'roi_head.bbox_roi_extractor.finest_scale': 28,
            'test_cfg.rcnn.max_per_img': 20,
        },
        lr=1e-3,
    ),
    dino=Method(
        'dino_soft_small_1x',
        iterations=600,
        options={
            'encoder.num_layers': 1,
            'encoder.layer_cfg.self_attn_cfg.num_levels': 3,
            'decoder.num_layers': 2,
            'decoder.layer_cfg.cross_attn_cfg.num_levels': 3,
            'neck.num_outs': 3,
            'neck.out_channels': 1024,  # a quarter of it is the one width that mmdet's DINO has
            'num_feature_levels': 3,
            'num_queries': 30,
            'dn_cfg.group_cfg.num_dn_queries': 30,
            'test_cfg.max_per_img': 30,
        },
        lr=5e-4,
    ),
    mask2former=Method(
        'mask2former_soft_small_50e',
        iterations=900,
        options={
            **_NARROW,
            'panoptic_head.pixel_decoder.encoder.num_layers': 1,
            'panoptic_head.pixel_decoder.encoder.layer_cfg.self_attn_cfg.num_levels': 2,
            'panoptic_head.transformer_decoder.num_layers': 2,
            'panoptic_head.pixel_decoder.num_outs': 2,
            'panoptic_head.pixel_decoder.norm_cfg': dict(type='BN', _delete_=True),
            'panoptic_head.pixel_decoder.positional_encoding.num_feats': 32,
            'panoptic_head.positional_encoding.num_feats': 32,
            'panoptic_head.num_transformer_feat_level': 2,
            'panoptic_head.num_queries': 20,
            'train_cfg.num_points': 256,
            'test_cfg.max_per_image': 20,
            'data_preprocessor.batch_augments': None,
        },
        lr=1e-3,
    ),
    vitdet=Method('mask_rcnn_soft_small_lsj_100e', options={**_MASKS, 'train_cfg.rcnn.sampler.num': 128}),
    upernet=Method('upernet_soft_small_160k', iterations=450, batch_size=4, sky=False),
    classifier=Method('soft_tiny_in1k', iterations=250, batch_size=32, lr=1e-3, sky=False),
)
