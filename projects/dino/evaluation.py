"""How good features are: by their nearest neighbours, and as the input of a linear classifier."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.dist import all_gather
from mmengine.model import BaseModule
from mmengine.registry import LOOPS, MODELS
from mmengine.runner import BaseLoop, Runner
from torch import Tensor
from torch.utils.data import DataLoader

from .training import unwrapped


def knn_votes(
    queries: Tensor, bank: Tensor, labels: Tensor, num_classes: int, k: int, temperature: float = 0.07
) -> Tensor:
    """Votes (Q, classes) of the k nearest of ``bank`` (N, C), with ``labels`` (N), for ``queries`` (Q, C).

    Nearness is the cosine, and a neighbour's weight exp(cosine / temperature).
    """
    nearness, nearest = (F.normalize(queries) @ F.normalize(bank).T).topk(min(k, len(bank)))
    weights = (nearness / temperature).exp()
    return weights.new_zeros(len(queries), num_classes).scatter_add_(1, labels[nearest], weights)


@LOOPS.register_module()
class KNNTestLoop(BaseLoop):
    """Classifies the images of the test by their nearest neighbours among those of another loader.

    Args:
        runner (Runner): The runner.
        dataloader (dict): Config of the loader of the test.
        bank (dict): Config of the loader of the neighbours.
        evaluator (list): Not used; an empty list.
        neighbours (Sequence[int]): How many vote; each number has scores of its own.
        chunk (int): Images that are compared at once.
    """

    def __init__(
        self,
        runner: Runner,
        dataloader: dict,
        bank: dict,
        evaluator: Any = (),
        neighbours: Sequence[int] = (10, 20, 100, 200),
        chunk: int = 256,
    ) -> None:
        super().__init__(runner, dataloader)
        self.bank: DataLoader = runner.build_dataloader(bank)
        self.neighbours, self.chunk = neighbours, chunk

    def run(self) -> dict[str, float]:
        """Top-1 and top-5 accuracy in percent for each number of neighbours."""
        self.runner.call_hook('before_test')
        self.runner.call_hook('before_test_epoch')
        self.runner.model.eval()
        bank, labels = self._features(self.bank)
        queries, classes = self._features(self.dataloader)
        count = int(torch.cat([labels, classes]).max()) + 1
        scores = {}
        for k in self.neighbours:
            votes = torch.cat([knn_votes(chunk, bank, labels, count, k) for chunk in queries.split(self.chunk)])
            right = votes.topk(min(5, count)).indices == classes[:, None]
            scores[f'knn/top1_{k}'] = 100 * right[:, 0].double().mean().item()
            scores[f'knn/top5_{k}'] = 100 * right.any(1).double().mean().item()
        self.runner.call_hook('after_test_epoch', metrics=scores)
        self.runner.call_hook('after_test')
        return scores

    @torch.no_grad()
    def _features(self, loader: DataLoader) -> tuple[Tensor, Tensor]:
        """Features (N, C) and classes (N) of all images, also of those that other processes have."""
        model, features, labels = unwrapped(self.runner), [], []
        for batch in loader:
            batch = model.data_preprocessor(batch)
            features.append(model(batch['inputs'], mode='tensor'))
            labels.append(torch.cat([sample.gt_label for sample in batch['data_samples']]).to(features[-1].device))
        found = [torch.stack(all_gather(torch.cat(each)), 1).flatten(0, 1) for each in (features, labels)]
        return tuple(each[: len(loader.dataset)] for each in found)  # the sampler begins again to give all as many


@MODELS.register_module()
class Probe(BaseModule):
    """A frozen backbone whose feature is made of several blocks: class tokens and means of tokens, each normalised.

    Args:
        backbone (dict): A backbone with a final LayerNorm ``norm``, which is applied to each vector.
        class_tokens (Sequence[str]): Names of blocks whose first token is taken.
        means (Sequence[str]): Names of blocks whose tokens, among them no class token, are averaged.
    """

    def __init__(self, backbone: dict, class_tokens: Sequence[str] = (), means: Sequence[str] = ()) -> None:
        super().__init__()
        self.backbone = MODELS.build(backbone).requires_grad_(False)
        self.seen: list[Tensor] = []
        for name in class_tokens:
            self.backbone.get_submodule(name).register_forward_hook(lambda *args: self.seen.append(args[2][:, 0]))
        for name in means:
            self.backbone.get_submodule(name).register_forward_hook(lambda *args: self.seen.append(args[2].mean(1)))

    def train(self, mode: bool = True) -> 'Probe':
        """The backbone stays in eval mode."""
        super().train(mode)
        self.backbone.eval()
        return self

    @torch.no_grad()
    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Images (B, 3, H, W) to vectors side by side (B, vectors · C)."""
        self.seen.clear()
        self.backbone(x)
        return (torch.cat([self.backbone.norm(vector) for vector in self.seen], dim=1),)
