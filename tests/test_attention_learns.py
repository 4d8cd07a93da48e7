"""Every attention learns what only attention can tell: whether the sky far above an object is that of day or night.

The sky is beyond the reach of every convolution, so that without attention no network is better than chance.
"""

from typing import Callable, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft import SOFT, SimADeiT, SimAXCiT
from mmsoft.attention.measure import without_attention
from mmsoft.datasets.shapes_scene import SKIES, Canvas

SIZE, TRAINED, HELD_OUT, BATCH, ITERATIONS = 64, 480, 240, 16, 90
MINIMUM_ROW = 40  # of an object's centre: 30 below the sky, where stage 1 of SOFT reaches 22 up, and XCiT's block 23
ATTENTIONS = [
    'CosFormerAttention',
    'EfficientAttention',
    'GaussianAttention',
    'LinformerAttention',
    'NystromformerAttention',
    'PerformerAttention',
    'SimAAttention',
    'SoftmaxAttention',
]
WIDE = dict(type='SOFTAttention', initial_gamma=0.3)


class Scenes(NamedTuple):
    """Images (N, 3, H, W), whether it is night (N, ), and row and column of an object (N, 2)."""

    images: Tensor
    night: Tensor
    places: Tensor


def draw(index: int):
    rng = np.random.default_rng([21, index])
    canvas = Canvas(rng, SIZE, SIZE)
    canvas.paint_sky(list(SKIES)[index % 2])
    while True:
        if canvas.place(int(rng.integers(6)), rng.uniform(14, 24)):
            scene = canvas.scene()
            rows, columns = np.nonzero(scene.instances[-1].mask)
            if rows.mean() >= MINIMUM_ROW:
                return scene.image, index % 2, (int(rows.mean()), int(columns.mean()))


@pytest.fixture(scope='module')
def scenes() -> Scenes:
    images, night, places = zip(*map(draw, range(TRAINED + HELD_OUT)))
    images = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float().sub(128).div(64)
    return Scenes(images, torch.tensor(night), torch.tensor(places))


def part(scenes: Scenes, indices) -> Scenes:
    return Scenes(*(one[indices] for one in scenes))


class Sky(nn.Module):
    """A backbone, and day or night at a place of its last map."""

    def __init__(self, backbone: nn.Module, stride: int) -> None:
        super().__init__()
        self.backbone, self.stride = backbone, stride
        self.head = nn.Linear(backbone.out_channels[-1], 2)

    def forward(self, scenes: Scenes) -> Tensor:
        rows, columns = (scenes.places // self.stride).unbind(1)
        return self.head(self.backbone(scenes.images)[-1][torch.arange(len(rows)), :, rows, columns])


def train(build: Callable[[], nn.Module], stride: int, scenes: Scenes, seed: int = 0) -> Sky:
    torch.manual_seed(seed)
    model = Sky(build(), stride)
    model.backbone.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=ITERATIONS, pct_start=0.2)
    for _ in range(ITERATIONS):
        batch = part(scenes, torch.randint(TRAINED, (BATCH,)))
        F.cross_entropy(model(batch), batch.night).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval()


@torch.no_grad()
def accuracy(model: Sky, scenes: Scenes) -> float:
    held_out = part(scenes, slice(TRAINED, None))
    return (model(held_out).argmax(1) == held_out.night).float().mean().item()


def deit(attention: dict) -> Callable[[], nn.Module]:
    return lambda: SimADeiT(dict(embed_dims=32, num_heads=2, depth=1), (0,), attention, img_size=SIZE, patch_size=8)


def soft(attention: dict) -> Callable[[], nn.Module]:
    return lambda: SOFT(dict(embed_dims=[32], num_heads=[1], depths=[1]), out_indices=(0,), attention=[attention])


def xcit(attention: dict) -> Callable[[], nn.Module]:
    return lambda: SimAXCiT(dict(embed_dims=32, num_heads=2, depth=1, patch_size=8), (0,), attention)


CASES = {
    **{name: (deit(dict(type=name)), 8) for name in ATTENTIONS},
    'SimA in XCiT': (xcit(dict(type='SimAAttention')), 8),
    'SOFT': (soft(dict(WIDE, norm=False)), 4),
    'SOFT-Norm': (soft(WIDE), 4),
}


@pytest.mark.parametrize('name', CASES)
def test_learns_what_only_attention_can_tell(name, scenes):
    build, stride = CASES[name]
    model = train(build, stride, scenes)
    assert accuracy(model, scenes) >= 0.9
    with without_attention(model):
        assert 0.4 <= accuracy(model, scenes) <= 0.6


def test_convolutions_do_not_reach_the_sky(scenes):
    """So the task cannot be solved without attention: trained without it, a network stays at chance."""
    build, stride = CASES['SOFT-Norm']

    def silent() -> nn.Module:
        backbone = build()
        for module in backbone.modules():
            if hasattr(module, 'attended'):
                module.attended.register_forward_hook(lambda module, args, out: out * 0)
        return backbone

    assert 0.4 <= accuracy(train(silent, stride, scenes), scenes) <= 0.6
