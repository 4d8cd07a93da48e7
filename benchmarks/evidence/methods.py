"""Methods of the zoo, as small as they still learn on the synthetic shapes."""

from .scenes import Method

_MASKS = {
    'rpn_head.anchor_generator.scales': [4],
    'train_cfg.rpn_proposal': dict(nms_pre=400, max_per_img=100),
    'test_cfg.rpn': dict(nms_pre=200, max_per_img=50),
    'roi_head.bbox_roi_extractor.finest_scale': 28,
    'roi_head.mask_head.num_convs': 2,
    'roi_head.mask_roi_extractor.finest_scale': 28,
}
_ONE_STAGE = {'neck.num_outs': 4, 'test_cfg.nms_pre': 300, 'bbox_head.stacked_convs': 2}
_CENTRES = {
    **_ONE_STAGE,
    'bbox_head.anchor_generator': dict(octave_base_scale=4, strides=[8, 16, 32, 64]),
    'bbox_head.norm_cfg': dict(type='BN'),
}
METHODS = dict(
    retinanet=Method(
        'retinanet_soft_tiny_1x',
        options={
            **_ONE_STAGE,
            'bbox_head.type': 'RetinaSepBNHead',  # GroupNorm's statistics would tell every place of the sky
            'bbox_head.num_ins': 4,
            'bbox_head.norm_cfg': dict(type='BN'),
            'bbox_head.anchor_generator': dict(
                octave_base_scale=2, scales_per_octave=2, ratios=[0.6, 1.0, 1.7], strides=[8, 16, 32, 64]
            ),
        },
    ),
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
            'panoptic_head.pixel_decoder.encoder.layer_cfg.self_attn_cfg.embed_dims': 64,
            'panoptic_head.pixel_decoder.encoder.layer_cfg.ffn_cfg.embed_dims': 64,
            'panoptic_head.transformer_decoder.layer_cfg.self_attn_cfg.embed_dims': 64,
            'panoptic_head.transformer_decoder.layer_cfg.cross_attn_cfg.embed_dims': 64,
            'panoptic_head.transformer_decoder.layer_cfg.ffn_cfg.embed_dims': 64,
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
    upernet=Method('upernet_soft_small_160k', batch_size=4, sky=False),
    classifier=Method('soft_tiny_in1k', iterations=250, batch_size=32, lr=1e-3, sky=False),
)
METHODS['mask2former_panoptic'] = METHODS['mask2former']._replace(config='mask2former_panoptic_soft_small_50e')
_WITH_SIMA = dict(
    rtmdet='rtmdet_sima_xcit_small_12_p16_100e',
    dino='dino_sima_xcit_small_12_p16_1x',
    mask2former='mask2former_sima_xcit_small_12_p16_50e',
    mask2former_panoptic='mask2former_panoptic_sima_xcit_small_12_p16_50e',
    vitdet='mask_rcnn_sima_xcit_small_12_p16_lsj_100e',
)
METHODS.update(
    {
        f'{name}_sima': METHODS[name]._replace(config=config, network='sima_xcit_p8')
        for name, config in _WITH_SIMA.items()
    }
)
