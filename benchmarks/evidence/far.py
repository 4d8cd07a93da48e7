"""The far task: whether it is day or night at an object, which the sky far above tells, and nothing else.

The sky is beyond the reach of the convolutions of a shallow network, which without attention is no better than chance.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.attention import Attention
from mmsoft.datasets.shapes_scene import SKIES, Canvas
from mmsoft.registry import MODELS

from .networks import scored

SIDE, TRAINED, HELD_OUT = 64, 480, 240


class Far(NamedTuple):
    """A training.

    Attributes:
        backbone: Config of a backbone; the last of its maps is looked at.
        stride: Of that map.
        side: Of the images, in pixels.
        iterations: In batches of 16.
        lr: Maximum of the learning rate.
        clip: Maximum norm of the gradient, if any.
        groups: Options of the optimizer for parameters whose names contain the keys.
        larger: Multiples of the side at which it is scored, and scored again after tuning.
        tuning: Iterations at each larger side, in batches of 4.
        noise: Standard deviations of noise on the tokens before every attention, as parts of the tokens' own.
    """

    backbone: dict[str, Any]
    stride: int
    side: int = SIDE
    iterations: int = 90
    lr: float = 3e-3
    clip: Optional[float] = 1.0
    groups: dict[str, dict[str, float]] = {}
    larger: Sequence[int] = ()
    tuning: int = 0
    noise: Sequence[float] = ()

    def train(self, seed: int = 0, *folders: Path) -> dict[str, Any]:
        """Trains, without files; returns what is told of the training: scores, shares and losses."""
        torch.manual_seed(seed)
        model = Sky(MODELS.build(dict(self.backbone, _scope_='mmsoft')), self.stride)
        model.backbone.init_weights()
        images = scenes(self.side, TRAINED + HELD_OUT)
        losses, steepest = self.fit(model, images.part(slice(TRAINED)), self.iterations, self.lr)
        held_out = images.part(slice(TRAINED, None))
        found = scored(model, lambda: {'accuracy': model.accuracy(held_out)})
        for noise in self.noise:
            with noisy(model, noise):
                found['scores'][f'accuracy, noise {noise}'] = model.accuracy(held_out)
        before = {name: one.clone() for name, one in model.state_dict().items()}
        for times in self.larger:
            model.load_state_dict(before)
            images = scenes(times * self.side, TRAINED // 4 + HELD_OUT // 2)
            larger = images.part(slice(TRAINED // 4, None))
            found['scores'][f'accuracy at {times}×'] = model.accuracy(larger)
            if self.tuning:
                self.fit(model, images.part(slice(TRAINED // 4)), self.tuning, self.lr / 10, batch=4)
                found['scores'][f'tuned at {times}×'] = model.accuracy(larger)
        return dict(
            found,
            iterations=self.iterations,
            last_loss=float(np.mean(losses[-10:])),
            learned=next((i for i in range(10, len(losses)) if np.mean(losses[i - 10 : i]) < 0.35), None),
            steepest=steepest,
        )

    def fit(
        self, model: 'Sky', images: 'Scenes', iterations: int, lr: float, batch: int = 16
    ) -> tuple[list[float], float]:
        """Trains a model, and stops when its loss is not finite; returns the losses and the largest gradient norm."""
        model.train()
        parameters: dict[str, list[nn.Parameter]] = {}
        for name, one in model.named_parameters():
            key = next((key for key in self.groups if key in name), '')
            parameters.setdefault(key, []).append(one)
        optimizer = torch.optim.AdamW(
            [dict(params=some, **self.groups.get(key, {})) for key, some in parameters.items()],
            lr=lr,
            weight_decay=0.05,
        )
        rates = [group['lr'] for group in optimizer.param_groups]
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=iterations, pct_start=0.2)
        losses, steepest = [], 0.0
        for _ in range(iterations):
            some = images.part(torch.randint(len(images.night), (batch,)))
            loss = F.cross_entropy(model(some), some.night)
            losses.append(loss.item())
            if not np.isfinite(losses[-1]):
                break
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), self.clip or float('inf')).item()
            steepest = max(steepest, norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        model.eval()
        return losses, steepest


class Scenes(NamedTuple):
    """Images (N, 3, H, W), whether it is night (N, ), and row and column of an object (N, 2)."""

    images: Tensor
    night: Tensor
    places: Tensor

    def part(self, indices: Any) -> 'Scenes':
        """Some of them."""
        return Scenes(*(one[indices] for one in self))


class Sky(nn.Module):
    """A backbone, and day or night at a place of its last map."""

    def __init__(self, backbone: nn.Module, stride: int) -> None:
        super().__init__()
        self.backbone, self.stride = backbone, stride
        self.head = nn.Linear(backbone.out_channels[-1], 2)

    def forward(self, scenes: Scenes) -> Tensor:
        """Scores of day and night (N, 2)."""
        rows, columns = (scenes.places // self.stride).unbind(1)
        return self.head(self.backbone(scenes.images)[-1][torch.arange(len(rows)), :, rows, columns])

    @torch.no_grad()
    def accuracy(self, scenes: Scenes) -> float:
        """Part of the scenes in which day and night are told."""
        parts = [scenes.part(slice(start, start + 40)) for start in range(0, len(scenes.night), 40)]
        return float(np.mean([(self(part).argmax(1) == part.night).float().mean().item() for part in parts]))


@cache
def scenes(side: int, count: int) -> Scenes:
    """The same scenes for the same side, whose objects are large and far below the sky."""
    images, night, places = zip(*(_draw(side, index) for index in range(count)))
    stacked = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float().sub(128).div(64)
    return Scenes(stacked, torch.tensor(night), torch.tensor(places))


def _draw(side: int, index: int) -> tuple[np.ndarray, int, tuple[int, int]]:
    rng = np.random.default_rng([21, index])
    canvas = Canvas(rng, side, side)
    canvas.paint_sky(list(SKIES)[index % 2])
    while True:
        if canvas.place(int(rng.integers(6)), rng.uniform(14, 24) * side / SIDE):
            scene = canvas.scene()
            rows, columns = np.nonzero(scene.instances[-1].mask)
            if rows.mean() >= 40 * side / SIDE:  # of 64, where the sky ends at 10, and convolutions reach 22 or 23
                return scene.image, index % 2, (int(rows.mean()), int(columns.mean()))


@contextmanager
def noisy(model: nn.Module, deviation: float) -> Iterator[None]:
    """Adds noise to the tokens that enter an attention, so many of their own standard deviations."""
    generator = torch.Generator().manual_seed(0)

    def add(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        noise = torch.randn(args[0].shape, generator=generator)
        return (args[0] + deviation * args[0].std() * noise, *args[1:])

    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, Attention):
                stack.callback(module.register_forward_pre_hook(add).remove)
        yield
