"""Contenders are what the benchmark calls them, and settings are what it says."""

import itertools

import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

from benchmarks.common import ROOT
from benchmarks.contenders import CONTENDERS, build_contender, contender, fold_norms
from benchmarks.speed import main
from mmsoft.attention import SOFTAttention
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config


@pytest.mark.parametrize('model', ['resnet50', 'soft_norm_nano', 'sima_xcit_small', 'xcit_small'])
def test_folding_norms_changes_nothing_but_their_number(model):
    torch.manual_seed(0)
    network = build_contender(model)
    network.eval()
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.running_mean), nn.init.uniform_(norm.running_var, 0.5, 2)
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = network(image)
        before = sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())
        folded = fold_norms(network)
        for a, b in zip(folded(image), expected):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in folded.modules()) < before


def test_contenders_have_rivals_and_options():
    assert {one.rival for one in CONTENDERS.values() if one.rival} <= set(CONTENDERS)
    found = contender('soft_norm_tiny:attention.bottleneck_size=6')
    assert found.backbone['attention']['bottleneck_size'] == 6 and found.label == 'SOFT-Norm-Tiny, bottleneck_size=6'
    assert 'bottleneck_size' not in CONTENDERS['soft_norm_tiny'].backbone['attention']
    for wrong in ('soft_big', 'soft_tiny:attention'):
        with pytest.raises(UsageError, match='soft_'):
            contender(wrong)


# By contender: the config whose backbone it has, or millions of parameters, as printed without the classifier's.
MADE_OF = dict(
    soft_tiny='soft_tiny_plain',
    soft_norm_tiny='soft_tiny',
    soft_small='soft_small_plain',
    soft_norm_small='soft_small',
    sima_xcit_small='sima_xcit_small_12_p16',
    tiny_soft='soft_tiny_plain',
    **{f'tiny_{name}': f'soft_tiny_{name}' for name in ('softmax', 'linformer', 'performer', 'nystromformer')},
    **{f'tiny_bottleneck_{count}': f'soft_tiny_bottleneck_{count}' for count in (36, 49, 64, 81)},
    pvt_tiny=13.2 - 0.51,
    pvt_small=24.5 - 0.51,
    swin_tiny=28.3 - 0.77,
    resnet50=25.6 - 2.05,
    xcit_small=26.3 - 0.38,
)


@pytest.mark.parametrize('name', MADE_OF)
def test_contenders_are_what_they_are_called(name):
    backbone, same = contender(name).backbone, MADE_OF[name]
    if isinstance(same, float):
        parameters = sum(weight.numel() for weight in MODELS.build(backbone).parameters())
        assert parameters / 1e6 == pytest.approx(same, abs=0.1)
        return
    cfg = load_config(str(ROOT / f'configs/{same}_in1k.py')).model.backbone
    cfg.update(drop_path_rate=0.0, out_type=backbone.get('out_type', 'featmap'))
    with torch.device('meta'):
        networks = MODELS.build(backbone), MODELS.build(cfg)
    for ours, theirs in itertools.zip_longest(*(network.modules() for network in networks)):
        assert type(ours) is type(theirs) and settings(ours) == settings(theirs)


def settings(module):
    """Numbers, words and functions that a module holds."""
    return {key: value for key, value in vars(module).items() if not key.startswith('_') and key != 'init_cfg'}


@pytest.mark.parametrize('size', ['tiny', 'small'])
@pytest.mark.parametrize('limit', [100, 400])
def test_contenders_with_a_limit_have_it(size, limit):
    plain, limited = (contender(f'soft_norm_{size}{end}').backbone for end in ('', f'_{limit}'))
    assert limited == dict(plain, attention=dict(plain['attention'], bottleneck_limit=limit))


def test_the_published_arithmetic_is_that_of_the_network():
    """Held whole, at a size where nothing else is different. All steps are in the graph of autograd alone."""
    image, maps, kept = torch.randn(1, 3, 64, 64), [], {}
    for name in ('tiny_soft', 'tiny_autograd', 'tiny_closed'):
        torch.manual_seed(0)
        network, some = build_contender(name).eval(), []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, some=some: some.append(1) or x, lambda x: x):
            maps.append(network(image))
        kept[name] = len(some)
    for other in maps[1:]:
        for a, b in zip(maps[0], other):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    blocks = sum(isinstance(module, SOFTAttention) for module in network.modules())
    assert kept['tiny_autograd'] - kept['tiny_closed'] > 20 * blocks


@pytest.mark.parametrize('wrong', ['soft_norm_nano:attention.bottleneck_limit=0', 'swin_tiny:nosuch=3'])
def test_options_that_a_backbone_does_not_take(wrong, tmp_path):
    with pytest.raises(UsageError, match='bottleneck_limit must be|swin_tiny:nosuch=3 cannot be built'):
        main(['--models', wrong, '--sizes', '64', '--out-dir', str(tmp_path)])
    assert not list(tmp_path.iterdir())
