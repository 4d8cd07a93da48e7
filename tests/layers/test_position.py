import pytest
import torch

from mmsoft.layers.maps import resize_pos_embed


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
    rows = torch.arange(4.0).view(1, 4, 1).repeat(1, 1, 4).flatten(1).unsqueeze(-1)
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


@pytest.mark.parametrize('mode', ['bilinear', 'bicubic'])
@pytest.mark.parametrize('hw', [(7, 9), (3, 2), (25, 42), (1, 30)], ids='{0[0]}x{0[1]}'.format)
def test_resizing_is_torchs_interpolation(hw, mode):
    """Whose gradient has no deterministic kernel on a GPU."""
    pos_embed = torch.randn(1, 1 + 5 * 6, 8, dtype=torch.float64)
    image = pos_embed[:, 1:].transpose(1, 2).unflatten(2, (5, 6))
    wanted = torch.nn.functional.interpolate(image, size=hw, mode=mode, align_corners=False)
    resized = resize_pos_embed(pos_embed, (5, 6), hw, mode)[:, 1:]
    torch.testing.assert_close(resized, wanted.flatten(2).transpose(1, 2))
