import copy

import pytest
import torch

from mmsoft.layers import PosEmbedResizer, resize_pos_embed


@pytest.mark.parametrize('extra', [0, 1, 2])
@pytest.mark.parametrize('hw', [(7, 7), (14, 14), (5, 9), (1, 1)], ids='{0[0]}x{0[1]}'.format)
def test_shape_and_class_token(hw, extra):
    pos_embed = torch.randn(1, extra + 49, 8)
    resized = resize_pos_embed(pos_embed, (7, 7), hw)
    assert resized.shape == (1, extra + hw[0] * hw[1], 8)
    assert torch.equal(resized[:, :extra], pos_embed[:, :extra])


def test_same_grid_is_untouched():
    pos_embed = torch.randn(1, 12, 8)
    assert torch.equal(resize_pos_embed(pos_embed, (3, 4), (3, 4)), pos_embed)


def test_transposed_grid_is_resized():
    pos_embed = torch.randn(1, 12, 8)
    assert not torch.equal(resize_pos_embed(pos_embed, (3, 4), (4, 3)), pos_embed)


def test_rows_stay_rows():
    rows = torch.arange(4.).view(1, 4, 1).repeat(1, 1, 4).flatten(1).unsqueeze(-1)
    resized = resize_pos_embed(rows, (4, 4), (8, 6)).view(8, 6)
    assert (resized == resized[:, :1]).all() and (resized.diff(dim=0) >= 0).all() and resized[-1, 0] > resized[0, 0]


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_dtype_stays_and_gradient_flows(dtype):
    pos_embed = torch.randn(1, 50, 8).to(dtype).requires_grad_()
    with torch.autocast('cpu', torch.bfloat16):
        resized = resize_pos_embed(pos_embed, (7, 7), (10, 4))
    assert resized.dtype == dtype
    resized.float().square().sum().backward()
    assert (pos_embed.grad != 0).all()


class TestResizer:

    @pytest.fixture
    def model(self):
        model = torch.nn.Module()
        model.pos_embed = torch.nn.Parameter(torch.randn(1, 50, 8))
        model.resize = PosEmbedResizer((7, 7))
        return model.eval()

    @torch.no_grad()
    def test_remembers_the_last_grid(self, model):
        first = model.resize(model.pos_embed, (10, 4))
        assert model.resize(model.pos_embed, (10, 4)) is first
        assert torch.equal(model.resize(model.pos_embed, (4, 10)), resize_pos_embed(model.pos_embed, (7, 7), (4, 10)))

    @pytest.mark.parametrize('change', [
        lambda model: model.load_state_dict(dict(pos_embed=torch.ones(1, 50, 8))),
        lambda model: model.pos_embed.add_(1),
        lambda model: model.double(),
        lambda model: (model.pos_embed.data.copy_(torch.ones(1, 50, 8)), model.eval()),
    ], ids=['loaded', 'in place', 'cast', 'swapped and evaluated'])  # yapf: disable
    @torch.no_grad()
    def test_forgets_what_has_changed(self, model, change):
        model.resize(model.pos_embed, (10, 4))
        change(model)
        expected = resize_pos_embed(model.pos_embed, (7, 7), (10, 4))
        torch.testing.assert_close(model.resize(model.pos_embed, (10, 4)), expected, rtol=0, atol=0)

    def test_learns(self, model):
        with torch.no_grad():
            model.resize(model.pos_embed, (10, 4))
        model.resize(model.pos_embed, (10, 4)).square().sum().backward()
        assert (model.pos_embed.grad != 0).all()

    @torch.no_grad()
    def test_training_is_not_trusted(self, model):
        """A teacher is averaged through ``.data`` at each step, without gradients and without leaving training."""
        model.train()
        model.resize(model.pos_embed, (10, 4))
        model.pos_embed.data.mul_(2)
        expected = resize_pos_embed(model.pos_embed, (7, 7), (10, 4))
        assert torch.equal(model.resize(model.pos_embed, (10, 4)), expected)

    @torch.no_grad()
    def test_copies_start_anew(self, model):
        first = model.resize(model.pos_embed, (10, 4))
        twin = copy.deepcopy(model)
        assert twin.resize._last == (None, None)
        assert torch.equal(twin.resize(twin.pos_embed, (10, 4)), first)
