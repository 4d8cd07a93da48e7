"""Heat maps over images."""

import numpy as np
import torch

from mmsoft.visualization import overlay

IMAGE = np.full((40, 60, 3), 100, np.uint8)


def test_what_is_high_is_brighter():
    heat = torch.zeros(4, 6, requires_grad=True) + torch.eye(4, 6)
    drawn = overlay(IMAGE, heat)
    assert drawn.shape == IMAGE.shape and drawn.dtype == np.uint8
    brightness = drawn.sum(-1)
    assert (
        np.unravel_index(brightness.argmax(), (40, 60))[0] // 10
        == np.unravel_index(brightness.argmax(), (40, 60))[1] // 10
    )
    assert brightness[5, 5] > brightness[5, 50]


def test_a_constant_map_has_no_heat():
    assert (overlay(IMAGE, np.ones((3, 3))) == overlay(IMAGE, np.zeros((3, 3)))).all()
