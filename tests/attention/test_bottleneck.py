import pytest
import torch

from mmsoft.attention.soft import BottleneckTokens

GRIDS = [(1, 1), (3, 9), (8, 8), (17, 8), (40, 13), (25, 42), (56, 57)]
grids = pytest.mark.parametrize('hw', GRIDS, ids='{0[0]}x{0[1]}'.format)
ratios = pytest.mark.parametrize('ratio', [1, 2, 4, 8])


@ratios
@grids
def test_number_of_tokens(hw, ratio):
    tokens = BottleneckTokens(4, ratio)(torch.randn(2, 4, *hw))
    assert tokens.shape == (2, -(-hw[0] // ratio) * -(-hw[1] // ratio), 4)


@pytest.mark.parametrize('size', [6, 7, 9])
@ratios
@grids
def test_fixed_number_of_tokens(hw, ratio, size):
    m = BottleneckTokens(4, ratio, size=size)(torch.randn(2, 4, *hw)).size(1)
    assert m <= size**2
    if min(hw) >= ratio + size - 1:
        assert m == size**2


@pytest.mark.parametrize('sampling', ['conv', 'avg_pool'])
@pytest.mark.parametrize('size', [None, 3, 7])
@ratios
@grids
def test_every_query_counts(hw, ratio, size, sampling):
    q = torch.randn(1, 4, *hw, dtype=torch.float64, requires_grad=True)
    module = BottleneckTokens(4, ratio, sampling, size).double()
    module(q).square().sum().backward()
    assert (q.grad != 0).any(1).all()


@grids
def test_convolution_of_a_map_that_the_ratio_divides_is_plain(hw):
    module = BottleneckTokens(4, 2)
    q = torch.randn(1, 4, 2 * hw[0], 2 * hw[1])
    want = module.act(module.norm(module.conv(q).flatten(2).transpose(1, 2)))
    torch.testing.assert_close(module(q), want)


@pytest.mark.parametrize('sampling', ['conv', 'avg_pool', 'random', 'biased'])
@pytest.mark.parametrize('size', [None, 7])
def test_evaluation_repeats_itself(sampling, size):
    module, q = BottleneckTokens(8, 4, sampling, size).eval(), torch.randn(2, 8, 19, 30)
    torch.testing.assert_close(module(q), module(q), rtol=0, atol=0)


def test_random_positions_are_drawn_anew_in_training():
    module, q = BottleneckTokens(8, 4, 'random'), torch.randn(2, 8, 19, 30)
    assert not torch.equal(module(q), module(q))


def test_random_positions_are_of_the_whole_map():
    module, q = BottleneckTokens(1, 4, 'random'), torch.arange(64.0).view(1, 1, 8, 8)
    module.norm = module.act = torch.nn.Identity()
    drawn = torch.cat([module(q).flatten() for _ in range(200)])
    assert drawn.unique().tolist() == [*range(64)]
    assert module.eval()(q).max() >= 4


def test_biased_sampling_takes_the_first_tokens():
    module, q = BottleneckTokens(8, 4, 'biased'), torch.randn(1, 8, 8, 8)
    torch.testing.assert_close(module(q), module.act(module.norm(q.flatten(2).transpose(1, 2)[:, :4])))


def test_unknown_sampling():
    with pytest.raises(ValueError, match='avg_pool'):
        BottleneckTokens(4, 2, 'magic')


@grids
def test_pooling_is_adaptive_pooling(hw):
    """Of torch, whose gradient has no deterministic kernel on a GPU and which no exporter takes at any size."""
    module, q = BottleneckTokens(4, 1, size=5).double(), torch.randn(2, 4, *hw, dtype=torch.float64)
    rows, columns = (min(5, extent) for extent in hw)
    pooled = torch.nn.functional.adaptive_avg_pool2d(module.conv(q), (rows, columns))
    torch.testing.assert_close(module(q), module.act(module.norm(pooled.flatten(2).transpose(1, 2))))


@pytest.mark.parametrize('sampling', ['conv', 'avg_pool', 'biased'])
@pytest.mark.parametrize('size', [None, 1, 3, 7])
@ratios
@grids
def test_what_graphs_hold_is_the_same(hw, ratio, size, sampling, monkeypatch):
    module, q = BottleneckTokens(4, ratio, sampling, size).double(), torch.randn(2, 4, *hw, dtype=torch.float64)
    want = module(q)
    monkeypatch.setattr(torch.onnx, 'is_in_onnx_export', lambda: True)
    torch.testing.assert_close(module(q), want)


@pytest.mark.skipif(not hasattr(torch.export, 'Dim'), reason='torch 2.1 has no names for free sizes')
@pytest.mark.parametrize('size', [None, 1, 6])
def test_torch_export_of_any_map(size):
    """Of a fixed size, example and other maps fall on both sides; torch 2.5 records a minimum for the example alone."""
    module = BottleneckTokens(4, 2, size=size)
    sides = {dim: torch.export.Dim(name, min=5, max=512) for dim, name in ((2, 'height'), (3, 'width'))}
    program = torch.export.export(module, (torch.randn(2, 4, 6, 30),), dynamic_shapes=(sides,), strict=False)
    for hw in ((6, 30), (5, 7), (8, 6), (31, 64)):
        q = torch.randn(2, 4, *hw)
        torch.testing.assert_close(program.module()(q), module(q))


def test_what_graphs_cannot_hold_is_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.onnx, 'is_in_onnx_export', lambda: True)
    with pytest.raises(ValueError, match='not exported'):
        BottleneckTokens(4, 2, 'random')(torch.randn(2, 4, 8, 8))
