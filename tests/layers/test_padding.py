"""Where padded images end."""

import torch

from mmsoft.layers.maps import pad_to_multiple
from mmsoft.layers.xcit import extent_mask, image_extent


def test_extent_of_padded_images():
    images = torch.zeros(3, 3, 8, 10)
    images[0, :, :5, :7] = 1
    images[1, 2, 3, 9] = -1
    assert image_extent(images).tolist() == [[5, 7], [4, 10], [8, 10]]


def test_mask_marks_the_first_rows_and_columns():
    mask = extent_mask(torch.tensor([[1, 2], [2, 3]]), (2, 3))
    assert mask.int().tolist() == [[[[1, 1, 0], [0, 0, 0]]], [[[1, 1, 1], [1, 1, 1]]]]


def test_padding_is_at_the_right_and_bottom():
    padded = pad_to_multiple(torch.ones(1, 1, 3, 4), 4)
    assert padded.shape == (1, 1, 4, 4) and padded[..., :3, :].all() and not padded[..., 3, :].any()
    assert pad_to_multiple(padded, 4) is padded
