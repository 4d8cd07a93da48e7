"""What is trained: rows of tables, each a training of the far task or of a method of the zoo, with several seeds."""

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Union

from mmsoft.utils import UsageError

from .closing import CHANGES, Watched
from .far import Far
from .methods import METHODS
from .networks import NETWORKS
from .scenes import Method


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


WIDE = dict(initial_gamma=0.3)
QUERIES = {'.query.': 0.1}  # their learning rate, as a factor
ATTENTIONS: dict[str, tuple[str, dict[str, Any]]] = dict(  # titles and configs
    cosformer=('CosFormer', dict(type='CosFormerAttention')),
    cosformer_2d=('CosFormer, 2-D re-weighting', dict(type='CosFormerAttention', reweight=True)),
    efficient=('Efficient attention', dict(type='EfficientAttention')),
    gaussian=('exact Gaussian', dict(type='GaussianAttention')),
    gaussian_mean=('exact Gaussian, rows of sum 1', dict(type='GaussianAttention', normalise='mean')),
    gaussian_softmax=('softmax of the exact Gaussian', dict(type='GaussianAttention', normalise='softmax')),
    l2=('SimA, ℓ2 norm', dict(type='SimAAttention', p=2)),
    linformer=('Linformer', dict(type='LinformerAttention')),
    none=('SimA without a norm', dict(type='SimAAttention', p=None)),
    nystromformer=('Nyströmformer', dict(type='NystromformerAttention')),
    performer=('Performer', dict(type='PerformerAttention')),
    sima=('SimA', dict(type='SimAAttention')),
    soft=('SOFT', dict(type='SOFTAttention', norm=False, **WIDE)),
    soft_norm=('SOFT-Norm', dict(type='SOFTAttention', norm=True, **WIDE)),
    softmax=('Transformer', dict(type='SoftmaxAttention')),
    bottleneck_36=('36 bottleneck tokens', dict(type='SOFTAttention', bottleneck_size=6, **WIDE)),
    bottleneck_49=('49 bottleneck tokens', dict(type='SOFTAttention', bottleneck_size=7, **WIDE)),
    bottleneck_64=('64 bottleneck tokens', dict(type='SOFTAttention', bottleneck_size=8, **WIDE)),
    bottleneck_81=('81 bottleneck tokens', dict(type='SOFTAttention', bottleneck_size=9, **WIDE)),
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


def _sampling(**titles: str) -> dict[str, tuple[str, Far]]:
    """The far task with 4, 16 and 64 bottleneck tokens, sampled in different ways."""
    return {
        f'{name}_{side**2}': (
            f'{title}, m = {side**2}',
            Far(_soft(dict(type='SOFTAttention', sampling=name, **WIDE), ratios=[16 // side]), 4),
        )
        for name, title in titles.items()
        for side in (2, 4, 8)
    }


TWELVE = dict(side=112, lr=1e-3, iterations=120, depth=12, dims=64)  # blocks of 196 tokens, at the recipes' rate
LARGER = dict(larger=(2, 4), tuning=30)
OF_65, OF_64 = (dict(type='SimAAttention', reference_tokens=tokens) for tokens in (65, 64))  # as many as in training
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
    **_far('larger', 'deit', 'sima', depth=4, **LARGER),
    **_rows('larger', deit_sima_reference=('SimA, in DeiT, `reference_tokens=65`', Far(_deit(OF_65, 4), 8, **LARGER))),
    **_far('larger', 'xcit', 'sima', depth=4, **LARGER),
    **_rows('larger', xcit_sima_reference=('SimA, in XCiT, `reference_tokens=64`', Far(_xcit(OF_64, 4), 8, **LARGER))),
    **_rows(
        'sampling', **_sampling(conv='convolution', avg_pool='average pooling', random='random', biased='the first m')
    ),
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
