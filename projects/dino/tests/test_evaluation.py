"""Neighbours vote as the authors have it, on the features of all processes."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from mmengine.dataset import DefaultSampler
from mmpretrain.structures import DataSample
from torch.utils.data import DataLoader

from projects.dino import evaluation
from projects.dino.evaluation import KNNTestLoop, knn_votes


def test_neighbours_vote_as_in_a_loop():
    queries, bank, labels = torch.randn(6, 5), torch.randn(30, 5), torch.arange(30) % 4
    votes = knn_votes(queries, bank, labels, 4, 7)
    for query, found in zip(queries.double(), votes):
        near = sorted(
            ((float(F.cosine_similarity(query, one, dim=0)), int(label)) for one, label in zip(bank.double(), labels)),
            reverse=True,
        )
        expected = [sum(math.exp(cosine / 0.07) for cosine, label in near[:7] if label == each) for each in range(4)]
        assert found.tolist() == pytest.approx(expected, rel=1e-4)


def test_the_first_vote_and_the_first_five_are_scored(monkeypatch):
    run = SimpleNamespace(model=torch.nn.Identity(), build_dataloader=str, call_hook=lambda *args, **options: None)
    angles = torch.arange(7) / 5  # of one image of each class
    classes = torch.tensor([0, 1, 6])  # of queries beside the first: the nearest, the second and the last
    found = dict(bank=(torch.stack([angles.cos(), angles.sin()], 1), torch.arange(7)))
    found['queries'] = torch.tensor([[1.0, 0.0]] * 3), classes
    loop = KNNTestLoop(run, 'queries', 'bank', neighbours=[7])
    monkeypatch.setattr(loop, '_features', found.get)
    assert loop.run() == pytest.approx({'knn/top1_7': 100 / 3, 'knn/top5_7': 200 / 3})


def test_features_are_those_of_all_processes(monkeypatch):
    """Of two processes and five images, of which the sampler gives each three."""
    images = [(torch.full((1,), float(place)), torch.tensor(place)) for place in range(5)]
    model = torch.nn.Module()
    model.forward = lambda inputs, mode: inputs
    model.data_preprocessor = lambda batch: dict(
        inputs=torch.stack([image for image, _ in batch]), data_samples=[DataSample().set_gt_label(y) for _, y in batch]
    )
    parts, loops = [], []
    for rank in range(2):
        monkeypatch.setattr('mmengine.dataset.sampler.get_dist_info', lambda rank=rank: (rank, 2))
        loader = DataLoader(images, 2, sampler=DefaultSampler(images, shuffle=False), collate_fn=list)
        run = SimpleNamespace(model=torch.nn.DataParallel(model), build_dataloader=lambda one: one)
        loops.append(KNNTestLoop(run, loader, loader))
        monkeypatch.setattr(evaluation, 'all_gather', lambda x: parts.append(x) or [x])
        loops[rank]._features(loader)
    for loop in loops:
        gathered = iter([parts[::2], parts[1::2]])
        monkeypatch.setattr(evaluation, 'all_gather', lambda _, gathered=gathered: next(gathered))
        features, classes = loop._features(loop.bank)
        assert features.flatten().tolist() == classes.tolist() == [0, 1, 2, 3, 4]
