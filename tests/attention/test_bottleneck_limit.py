"""SOFT with at most so many bottleneck tokens."""

import pytest
import torch
from mmengine.config import Config

from mmsoft import SOFT
from mmsoft.attention import soft
from mmsoft.attention.base import Site
from mmsoft.attention.soft import BottleneckTokens, SOFTAttention

NANO = dict(embed_dims=[16, 32, 32, 32], num_heads=[1, 2, 2, 2], depths=[1, 1, 1, 1])


def build(norm=True, **attention):
    torch.manual_seed(0)
    model = SOFT(NANO, attention_norm=norm, attention=attention)
    model.init_weights()
    return model.eval()


@torch.no_grad()
def run(x, **options):
    return build(**options)(x)


@pytest.mark.parametrize('norm', [False, True], ids=['soft', 'soft_norm'])
@pytest.mark.parametrize('hw', [(32, 32), (33, 47), (224, 224), (512, 800), (640, 640)], ids=str)
def test_nothing_changes_up_to_the_limit(hw, norm):
    x = torch.randn(1, 3, *hw)
    for got, want in zip(run(x, norm=norm, bottleneck_limit=400), run(x, norm=norm)):
        assert torch.equal(got, want)


@pytest.mark.parametrize('sampling', ['conv', 'avg_pool', 'random', 'biased'])
def test_number_of_tokens(sampling, monkeypatch):
    seen, x = [], torch.randn(1, 3, 160, 200)

    def record(q, few, v, full, *options):
        seen.append((few, full))
        return torch.zeros_like(v)

    model = build(sampling=sampling, bottleneck_limit=8)
    monkeypatch.setattr(soft, 'matched_attention', record)
    with torch.no_grad():
        model(x)
    assert len(seen) == 3
    for few, full in seen:
        assert full.size(2) == 5 * 7
        assert few.size(2) == 8
        same = (few.unsqueeze(3) == full.unsqueeze(2)).all(-1)  # each is one of all, and they are in their order
        places = [place.nonzero()[0].item() for place in same[0, 0]]
        assert places == sorted(set(places))
        if sampling == 'biased':
            assert places == [*range(8)]
        if sampling in ('conv', 'avg_pool'):  # one of each 4 or 5 tokens, in most columns of the map
            assert all(i * 35 // 8 <= place < (i + 1) * 35 // 8 for i, place in enumerate(places))
            assert len({place % 7 for place in places}) >= 5


@pytest.mark.parametrize('norm', [False, True], ids=['soft', 'soft_norm'])
def test_maps_stay_near_those_without_a_limit(norm):
    x = torch.nn.functional.interpolate(torch.randn(1, 3, 20, 24), scale_factor=16, mode='bicubic')
    want = run(x, norm=norm)

    def errors(**options):
        got = run(x, norm=norm, bottleneck_limit=8, **options)
        return [((a - b).norm() / b.norm()).item() for a, b in zip(got, want)]

    assert max(errors()) < 0.05
    assert max(errors(bottleneck_gain=False)) > (0.3 if norm else 0.5)


def test_an_image_does_not_depend_on_its_batch():
    x = torch.randn(2, 3, 160, 200)
    for whole, one in zip(run(x, bottleneck_limit=9), run(x[1:], bottleneck_limit=9)):
        torch.testing.assert_close(whole[1:], one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('image', [torch.zeros(1, 3, 160, 200), torch.ones(1, 3, 160, 200)], ids=['zeros', 'ones'])
def test_images_without_content(image):
    assert all(out.isfinite().all() for out in run(image, bottleneck_limit=4))


@pytest.mark.parametrize('sampling', ['conv', 'random'])
def test_training(sampling):
    model = build(sampling=sampling, bottleneck_limit=9).train()
    sum(out.square().mean() for out in model(torch.randn(2, 3, 160, 200))).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_option_of_any_config():
    """Also of one that says nothing of its attention."""
    cfg = Config(dict(model=dict(backbone=dict(type='mmsoft.SOFT', arch=NANO, attention_norm=False))))
    cfg.merge_from_dict({'model.backbone.attention.bottleneck_limit': 9})
    backbone = dict(cfg.model.backbone)
    del backbone['type']
    attention = SOFT(**backbone).stages[2].blocks[0].attn
    assert attention.limit == 9 and attention.kind == 'SOFTAttention(norm=False)'


@pytest.mark.parametrize('wrong', [0, 3, 100.0, True, '100'], ids=repr)
def test_wrong_limits(wrong):
    with pytest.raises(ValueError, match='bottleneck_limit must be an integer, at least 4'):
        build(bottleneck_limit=wrong)


def test_weights_are_shared():
    assert build(bottleneck_limit=9).state_dict().keys() == build().state_dict().keys()
    assert isinstance(build(bottleneck_limit=9).stages[0].blocks[0].attn.bottleneck, BottleneckTokens)


def one_stage():
    return SOFT(
        dict(embed_dims=[16], num_heads=[1], depths=[1], sampling_ratios=[4]),
        out_indices=0,
        attention=dict(bottleneck_limit=9),
    ).eval()


@pytest.mark.slow
def test_compiles_to_one_graph():
    torch._dynamo.reset()
    model = one_stage()
    compiled = torch.compile(model, backend='aot_eager', fullgraph=True)
    for hw in ((64, 96), (64, 64), (160, 96)):
        grads = []
        for run in (model, compiled):
            model.zero_grad()
            run(torch.ones(1, 3, *hw).cumsum(3).sin())[0].square().mean().backward()
            grads.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(torch.library, 'custom_op'), reason='compile with torch 2.4 or newer')
def test_gradients_of_one_head_by_inductor():
    """Inductor reads those of indexed tokens, with one head, before they are there: zeros."""
    torch._dynamo.reset()
    attention = SOFTAttention(Site(32, 1, (24, 32), 8), bottleneck_limit=8)
    tokens, weight, found = torch.randn(2, 24 * 32, 32), torch.randn(2, 24 * 32, 32), []
    for run in (attention, torch.compile(attention, dynamic=False)):
        attention.zero_grad()
        (run(tokens, (24, 32)) * weight).sum().backward()
        found.append([parameter.grad for parameter in attention.parameters()])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize('hw', [(64, 96), (96, 128)], ids=['24 tokens', '48 tokens, more than columns of the estimate'])
def test_export_at_one_size(hw):
    model, x = one_stage(), torch.randn(2, 3, *hw)
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x)[0], model(x)[0], rtol=1e-4, atol=1e-5)
    assert not any('mmsoft' in str(node.target) for node in program.graph.nodes)  # it runs without the package


@pytest.mark.slow
@torch.no_grad()
def test_export_of_a_free_batch():
    model, x = one_stage(), torch.randn(2, 3, 96, 128)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim('batch', min=1, max=64)},))
    x = torch.randn(5, 3, 96, 128)
    torch.testing.assert_close(program.module()(x)[0], model(x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('strict', [True, False])
@pytest.mark.filterwarnings('ignore')
def test_free_sides_are_refused(strict):
    """What is decided at one size would be wrong, or not finite, at another."""
    sides = {2: torch.export.Dim('height', min=33, max=4096), 3: torch.export.Dim('width', min=33, max=4096)}
    with pytest.raises(Exception, match='images of one size|Constraints violated'):
        torch.export.export(one_stage(), (torch.randn(2, 3, 192, 256),), dynamic_shapes=(sides,), strict=strict)
