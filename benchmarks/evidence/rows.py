"""What is trained: rows of tables, each a training of the far task or of a method of the zoo, with several seeds."""

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Union

from mmsoft.utils import UsageError

from .far import Far
from .networks import NETWORKS

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


class Watched(NamedTuple):
    """A training that is watched while it runs: see :mod:`benchmarks.evidence.closing`.

    Attributes:
        method: What is trained.
        changes: Settings of the whole config by dotted keys.
        queries: Factor of the queries' weights before training.
        noise: Whether the gradients of all that makes the kernel are replaced by noise of the same size.
        scale: Factor of the images' sides.
    """

    method: Method
    changes: dict[str, Any] = {}
    queries: float = 1.0
    noise: bool = False
    scale: float = 1.0

    @property
    def network(self) -> str:
        """See :class:`Method`."""
        return self.method.network


class Row(NamedTuple):
    """A line of a table: its title, and what is trained."""

    table: str
    title: str
    task: Union[Far, Method, Watched]

    @property
    def key(self) -> str:
        """Changes whenever the training or its network does."""
        network = '' if isinstance(self.task, Far) else repr(NETWORKS[self.task.network])
        return hashlib.sha1((repr(self.task) + network).encode()).hexdigest()[:8]


def _soft(attention: dict, depths: Sequence[int] = (1,), kernel_size: int = 9, **options: Any) -> dict[str, Any]:
    stages = len(depths)
    sizes = dict(embed_dims=[32, 96, 160][:stages], num_heads=[1, 3, 5][:stages], depths=list(depths))
    arch = dict(sizes, kernel_sizes=[kernel_size] * stages, sampling_ratios=options.pop('ratios', [8, 4, 2][:stages]))
    return dict(type='SOFT', arch=arch, attention=[attention] * stages, out_indices=range(stages), **options)


def _deit(attention: dict, depth: int = 1, dims: int = 32, img_size: int = 64, **options: Any) -> dict[str, Any]:
    arch = dict(embed_dims=dims, num_heads=2, depth=depth)
    where = dict(out_indices=(depth - 1,), img_size=img_size, patch_size=8)
    return dict(type='SimADeiT', arch=arch, attention=attention, **where, **options)


def _xcit(attention: dict, depth: int = 1, dims: int = 32, **options: Any) -> dict[str, Any]:
    arch = dict(embed_dims=dims, num_heads=2, depth=depth, patch_size=8)
    return dict(type='SimAXCiT', arch=arch, attention=attention, out_indices=(depth - 1,), **options)


def _attention(title: str, kind: str, **options: Any) -> tuple[str, dict[str, Any]]:
    return title, dict(type=f'{kind}Attention', **options)


WIDE = dict(initial_gamma=0.3)
QUERIES = {'.query.': 0.1}  # their learning rate, as a factor
ATTENTIONS = dict(
    cosformer=_attention('CosFormer', 'CosFormer'),
    cosformer_2d=_attention('CosFormer, 2-D re-weighting', 'CosFormer', reweight=True),
    efficient=_attention('Efficient attention', 'Efficient'),
    gaussian=_attention('exact Gaussian', 'Gaussian'),
    gaussian_mean=_attention('exact Gaussian, rows of sum 1', 'Gaussian', normalise='mean'),
    gaussian_softmax=_attention('softmax of the exact Gaussian', 'Gaussian', normalise='softmax'),
    l2=_attention('SimA, ℓ2 norm', 'SimA', p=2),
    linformer=_attention('Linformer', 'Linformer'),
    none=_attention('SimA without a norm', 'SimA', p=None),
    nystromformer=_attention('Nyströmformer', 'Nystromformer'),
    performer=_attention('Performer', 'Performer'),
    sima=_attention('SimA', 'SimA'),
    soft=_attention('SOFT', 'SOFT', norm=False, **WIDE),
    soft_norm=_attention('SOFT-Norm', 'SOFT', norm=True, **WIDE),
    softmax=_attention('Transformer', 'Softmax'),
    **{
        f'bottleneck_{side**2}': _attention(f'{side**2} bottleneck tokens', 'SOFT', bottleneck_size=side, **WIDE)
        for side in (6, 7, 8, 9)
    },
)
BUILT = dict(deit=(_deit, 'DeiT', 8), soft=(_soft, 'SOFT', 4), xcit=(_xcit, 'XCiT', 8))


def _far(table: str, where: str, names: str, **options: Any) -> dict[str, Row]:
    """Rows of the far task: attentions in an architecture, with options of both."""
    build, architecture, stride = BUILT[where]
    own = {key: options.pop(key) for key in [*options] if key in Far._fields}
    return {
        f'{table}_{where}_{name}': Row(
            table.split('_')[0],
            f'{ATTENTIONS[name][0]}, in {architecture}',
            Far(build(ATTENTIONS[name][1], **options), **{'stride': stride, **own}),
        )
        for name in names.split()
    }


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


def _keys(*names: str, **factors: float) -> dict[str, Any]:
    """Factors of the optimizer for parameters whose names contain the keys."""
    return {'optim_wrapper.paramwise_cfg.custom_keys': dict.fromkeys(names, factors)}


def _backbone(key: str, value: Any) -> dict[str, Any]:
    return {f'model.backbone.{key}': value}


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    'none': ('nothing changed, γ = 1', {}),
    'gamma_01': ('γ = 0.1', dict(changes=_backbone('attention.initial_gamma', 0.1))),
    'gamma_03': ('γ = 0.3', dict(changes=_backbone('attention.initial_gamma', 0.3))),
    'gamma_06': ('γ = 0.6', dict(changes=_backbone('attention.initial_gamma', 0.6))),
    'channels_8': ('8 channels a head', dict(changes=_backbone('arch.num_heads', [4, 8, 16]))),
    'channels_16': ('16 channels a head', dict(changes=_backbone('arch.num_heads', [2, 4, 8]))),
    'channels_32_64_128': ('32/64/128 channels a head', dict(changes=_backbone('arch.num_heads', [1, 1, 1]))),
    'frozen_queries': ('queries frozen', dict(changes=_keys('.query.', lr_mult=0))),
    'frozen_sampling': ('sampling frozen', dict(changes=_keys('.bottleneck.conv', lr_mult=0))),
    'frozen_gamma': ("sampling's LayerNorm frozen", dict(changes=_keys('.bottleneck.norm', lr_mult=0))),
    'frozen': ('queries and sampling frozen', dict(changes=_keys('.query.', '.bottleneck.conv', lr_mult=0))),
    'slow_queries': ('queries learn at 0.1 of the rate', dict(changes=_keys('.query.', lr_mult=0.1))),
    'slow': ('queries and sampling, at 0.1', dict(changes=_keys('.query.', '.bottleneck.', lr_mult=0.1))),
    'fast_queries': ('queries, at 10 times the rate', dict(changes=_keys('.query.', lr_mult=10))),
    'eps': ("AdamW's ε = 1e-4, not 1e-8", dict(changes={'optim_wrapper.optimizer.eps': 1e-4})),
    'reversed': ('the kernel goes up the gradient', dict(changes=_keys('.query.', '.bottleneck.', lr_mult=-1))),
    'noise': ('gradients of the kernel are noise', dict(noise=True)),
    'queries_half': ("queries' weights × 0.5", dict(queries=0.5)),
    'queries_double': ("queries' weights × 2", dict(queries=2.0)),
    'decay_0': ('no weight decay', dict(changes={'optim_wrapper.optimizer.weight_decay': 0.0})),
    'decay_05': ('weight decay 0.5, not 0.05', dict(changes={'optim_wrapper.optimizer.weight_decay': 0.5})),
    'decay_gamma': ('no weight decay of γ', dict(changes=_keys('.bottleneck.norm', decay_mult=0))),
    'images_64': ('images of 64²', dict(scale=2 / 3)),
    'images_128': ('images of 128²', dict(scale=4 / 3)),
    'images_192': ('images of 192²', dict(scale=2.0)),
    'short': ('75 iterations', dict(iterations=75)),
    'long': ('450 iterations', dict(iterations=450)),
}
"""What is changed, one thing at a time, to see why attention closes: titles, and arguments of :func:`_watched`."""
OF_SOFT = 'none gamma_01 gamma_03 gamma_06 channels_8 channels_16 channels_32_64_128 frozen slow eps reversed noise'
OF_SIMA = 'cvt xcit_p8 deit'


def _retinanet(network: str, **options: Any) -> Method:
    return METHODS['retinanet']._replace(network=network, **options)


def _watched(network: str, iterations: int = 150, **options: Any) -> Watched:
    return Watched(_retinanet(network, iterations=iterations), **options)


def _closing(network: str, names: Iterable[str]) -> dict[str, tuple[str, Watched]]:
    return {name: (CHANGES[name][0], _watched(network, **CHANGES[name][1])) for name in names}


def _rows(table: str, **trained: tuple[str, Union[Far, Method, Watched]]) -> dict[str, Row]:
    """Rows of a table: by name, a title and what is trained."""
    return {f'{table}_{name}': Row(table, title, task) for name, (title, task) in trained.items()}


def _gammas(depths: Sequence[int], kernel_size: int, stride: int) -> dict[str, tuple[str, Far]]:
    """The far task with γ = 1 and 0.3, and with queries that learn at the rate of all, or more slowly."""
    found = {}
    for name, gamma, slow in itertools.product(('soft', 'soft_norm'), (1.0, 0.3), (False, True)):
        title, attention = ATTENTIONS[name]
        backbone = _soft({**attention, 'initial_gamma': gamma}, depths, kernel_size)
        groups = {key: dict(lr=3e-3 * factor) for key, factor in QUERIES.items()} if slow else {}
        key = f'{name}_{gamma:g}{"_slow" * slow}'.replace('.', '')
        found[key] = f'{title}, γ = {gamma:g}{", slow queries" * slow}', Far(backbone, stride, groups=groups)
    return found


def _larger_sima(where: str, tokens: int) -> dict[str, tuple[str, Far]]:
    """SimA on images larger than in training, without and with the scale of its number of tokens in training."""
    build, architecture, stride = BUILT[where]
    options = {'sima': {}, 'sima_reference': dict(reference_tokens=tokens)}
    return {
        f'{where}_{name}': (
            f'SimA, in {architecture}' + f', `reference_tokens={tokens}`' * bool(one),
            Far(build(dict(type='SimAAttention', **one), 4), stride, **LARGER),
        )
        for name, one in options.items()
    }


def _sampling(sampling: str, title: str) -> dict[str, tuple[str, Far]]:
    """The far task with 4, 16 and 64 bottleneck tokens."""
    attention = dict(type='SOFTAttention', sampling=sampling, **WIDE)
    return {
        f'{sampling}_{side**2}': (f'{title}, m = {side**2}', Far(_soft(attention, ratios=[16 // side]), 4))
        for side in (2, 4, 8)
    }


TWELVE = dict(side=112, lr=1e-3, iterations=120, depth=12, dims=64)  # blocks of 196 tokens, at the recipes' rate
LARGER = dict(larger=(2, 4), tuning=30)
NOISE = dict(noise=(0.5, 1.0, 2.0), depth=4)
TITLES = dict(
    soft='SOFT, γ = 0.6',
    soft_norm='SOFT-Norm, γ = 0.3',
    pvt='PVTv2',
    sima_cvt='SimA-CvT',
    sima_xcit_p16='SimA-XCiT, patch 16',
    xcit_p16='XCiT, patch 16',
    sima_xcit_p8='SimA-XCiT, patch 8',
    xcit_p8='XCiT, patch 8',
    sima_deit='SimA-DeiT, patch 8',
    deit='DeiT, patch 8',
)
"""Of networks in one RetinaNet."""
ROWS: dict[str, Row] = {
    **_far('far', 'deit', 'cosformer efficient gaussian linformer nystromformer performer sima softmax'),
    **_far('far', 'xcit', 'sima'),
    **_far('far', 'soft', 'soft soft_norm'),
    **_rows('open_one', **_gammas((1,), 9, 4)),
    **_rows('open_three', **_gammas((1, 2, 2), 3, 16)),
    **_far('depth', 'deit', 'soft soft_norm softmax gaussian gaussian_softmax', img_size=112, **TWELVE),
    **_far('depth', 'xcit', 'sima none cosformer cosformer_2d', clip=None, **TWELVE),
    **_far('larger', 'soft', 'soft soft_norm', stride=8, depths=(1, 4), kernel_size=3, **LARGER),
    **_rows('larger', **_larger_sima('deit', 65), **_larger_sima('xcit', 64)),
    **_rows('sampling', **_sampling('conv', 'convolution'), **_sampling('avg_pool', 'average pooling')),
    **_rows('sampling', **_sampling('random', 'random'), **_sampling('biased', 'the first m')),
    **_far('noise', 'deit', 'soft soft_norm softmax gaussian_mean nystromformer sima', **NOISE),
    **_far('ablation', 'soft', 'softmax linformer performer nystromformer gaussian gaussian_softmax'),
    **_far('ablation', 'soft', 'bottleneck_36 bottleneck_49 bottleneck_64 bottleneck_81'),
    **_far('ablation', 'xcit', 'none l2 efficient cosformer cosformer_2d'),
    **_far('ablation', 'deit', 'soft_norm'),
    **_far('ablation_patches', 'soft', 'soft_norm', embedding='patches'),
    **_far('ablation_one_head', 'deit', 'softmax sima', num_heads=1),
    **_far('ablation_relu', 'deit', 'sima', act_cfg=dict(type='ReLU')),
    **_far('ablation_no_lpi', 'xcit', 'sima', lpi=False),
    **_rows('architecture', **{name: (title, _retinanet(name)) for name, title in TITLES.items()}),
    **_rows(
        'open_detector',
        soft_1=('SOFT, γ = 1', _retinanet('soft_1')),
        soft_norm_1=('SOFT-Norm, γ = 1', _retinanet('soft_norm_1')),
        soft_03=('SOFT, γ = 0.3', _retinanet('soft_03')),
        soft_slow=('SOFT, γ = 0.3, slow queries', _retinanet('soft_03', slow=QUERIES)),
        soft_norm_slow=('SOFT-Norm, γ = 0.3, slow queries', _retinanet('soft_norm', slow=QUERIES)),
    ),
    **_rows('closing_soft_norm', **_closing('soft_norm_1', CHANGES)),
    **_rows('closing_soft', **_closing('soft_1', OF_SOFT.split())),
    **_rows(
        'closing_sima', **{name: (TITLES[f'sima_{name}'], _watched(f'sima_{name}', 450)) for name in OF_SIMA.split()}
    ),
    **_rows('method', **{name: (name.replace('_', ' '), one) for name, one in METHODS.items() if name != 'retinanet'}),
}


def select(names: Sequence[str] = ()) -> dict[str, Row]:
    """Rows by their names or the names of their tables, all of them if none is given.

    Raises:
        UsageError: If there is neither a row nor a table of a name.
    """
    tables = {row.table for row in ROWS.values()}
    unknown = [name for name in names if name not in ROWS and name not in tables]
    if unknown:
        raise UsageError(
            f'There is no row {", ".join(unknown)}; there are the tables {", ".join(sorted(tables))}, and --list '
            'prints their rows.'
        )
    return {name: row for name, row in ROWS.items() if not names or name in names or row.table in names}
