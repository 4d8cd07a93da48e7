import multiprocessing
import os

import pandas as pd
import pytest
import torch
from torch import nn

from benchmarks import benchmark
from benchmarks.benchmark import Case, Settings, Workers, fold_norms, run_benchmark
from benchmarks.benchmark_command import run
from benchmarks.contenders import CONTENDERS, PICTURES, WEIGHTS, build_contender
from benchmarks.report import ratios, write_report
from benchmarks.spectrum import errors, share_above_cut
from mmsoft.utils import UsageError

OPTIONS = dict(
    models=['soft_norm_nano', 'resnet50'], sizes=[(64, 96)], passes=['eval', 'train'], spectrum=(64, 96), checkpoint=None,
    rounds=2, patience=30.)
CASE = dict(
    model='soft_small', weights='fresh', picture='noise', height=64, width=64, backward=False, round=0, seconds=1.,
    memory=1e6, note='')


def runs(**columns):
    length = max(len(column) for column in columns.values())
    return pd.DataFrame({**{name: [value] * length for name, value in CASE.items()}, **columns})


def test_a_run_writes_the_report(tmp_path):
    report = run(**OPTIONS, out_dir=tmp_path).read_text()
    table = pd.read_csv(tmp_path / 'runs.csv')
    assert len(table) == 2 * 2 * (len(WEIGHTS) * len(PICTURES) + 1) and table.note.isna().all()
    assert (table.seconds > 0).all() and (table.memory > 0).all()
    for words in ('Evaluation', 'Training', '64×96', '64×96 training', 'SOFT-Norm-Nano', 'photograph', 'above the cut'):
        assert words in report
    for plot in ('seconds.png', 'memory.png'):
        assert (tmp_path / plot).read_bytes().startswith(b'\x89PNG')
    spectra = (tmp_path / 'spectra.csv').stat().st_mtime_ns
    assert run(**OPTIONS, out_dir=tmp_path).read_text() == report
    assert (tmp_path / 'spectra.csv').stat().st_mtime_ns == spectra


def test_what_was_measured_is_not_measured_again(tmp_path):
    runs(model=['resnet50'], seconds=[123.]).to_csv(tmp_path / 'benchmark.csv', index=False)
    table = run_benchmark(['resnet50'], [(64, 64), (32, 32)], [False], tmp_path / 'benchmark.csv', rounds=1)
    assert table.height.tolist() == [64, 32] and table.seconds[0] == 123. > table.seconds[1]


def test_a_failure_and_a_slow_contender_do_not_end_the_run(monkeypatch, tmp_path):

    def answer(self, case):
        if case.model == 'resnet50':
            return dict(seconds=float('nan'), memory=None, note='out of memory')
        return dict(seconds=100. if case.model == 'swin_tiny' else 1., memory=10**6, note='')

    monkeypatch.setattr(Workers, 'run', answer)
    models = ['resnet50', 'swin_tiny', 'pvt_tiny']
    table = run_benchmark(models, [(64, 64), (32, 32)], [False], tmp_path / 'runs.csv', rounds=3)
    assert table.groupby(['model', 'height']).size().to_dict() == {
        ('resnet50', 32): 1,
        ('swin_tiny', 32): 1,
        ('pvt_tiny', 32): 3,
        ('pvt_tiny', 64): 3
    }
    assert 'PVT-Tiny' in write_report(table, pd.DataFrame(), tmp_path).read_text()


def end(*_):
    os._exit(1)


def fail(*_):
    raise RuntimeError('of this sort')


@pytest.mark.parametrize('failure, note', [(end, 'out of memory'), (fail, 'RuntimeError: of this sort')])
def test_a_worker_that_fails_says_so(monkeypatch, failure, note):
    monkeypatch.setattr(benchmark, 'measure', failure)
    with Workers(Settings()) as workers:
        workers.context = multiprocessing.get_context('fork')
        assert note in workers.run(Case('resnet50', 'fresh', 'noise', 32, 32, False))['note']


def test_ratios_are_of_runs_side_by_side():
    table = runs(model=['soft_small', 'pvt_small'] * 3, round=[0, 0, 1, 1, 2, 2], seconds=[1., 2., 10., 20., 3., 3.])
    assert ratios(table)[['rival', 'ratio']].values.tolist() == [['pvt_small', 0.5]]


def test_the_worst_is_named(tmp_path):
    table = runs(
        model=['soft_small', 'soft_small', 'pvt_small'], weights=['fresh', 'trained', 'fresh'], seconds=[1., 4., 2.])
    assert '1.25 / 2.00' in write_report(table, pd.DataFrame(), tmp_path).read_text()


@pytest.mark.parametrize('model', ['resnet50', 'soft_norm_nano', 'sima_xcit_small', 'xcit_small'])
def test_folding_norms_changes_nothing_but_their_number(model):
    network = build_contender(model)
    network.eval()
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.running_mean), nn.init.uniform_(norm.running_var, 0.5, 2)
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = network(image)
        before = sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())
        folded = fold_norms(network)
        for a, b in zip(folded(image), expected):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in folded.modules()) < before


def test_shares_are_those_of_the_iteration():
    """Tokens that resemble each other leave few eigenvalues to invert; those far from each other leave all."""
    few = share_above_cut('soft_norm_nano', 'alike', 'photograph', (64, 96))
    many = share_above_cut('soft_norm_nano', 'fresh', 'noise', (64, 96))
    assert len(few) == len(many) == 3 and all(0 < a <= b <= 1 for a, b in zip(few, many)) and sum(few) < sum(many)


def test_the_network_is_as_exact_as_the_iteration():
    ours, iteration = errors('soft_norm_nano', 'alike', 'photograph', (64, 96))
    assert 0 < ours < 1e-3 and 0 < iteration < 1e-3


def test_pictures_fill_any_size():
    for make in PICTURES.values():
        picture = make(2, 96, 224)
        assert picture.shape == (2, 3, 96, 224) and 0.5 < picture.std() < 1.5


def test_every_rival_takes_part():
    assert {contender.rival for contender in CONTENDERS.values() if contender.rival} <= set(CONTENDERS)


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
@pytest.mark.parametrize('wrong', [dict(device='cuda'), dict(dtype='float16')])
def test_what_needs_a_gpu_says_so(tmp_path, wrong):
    with pytest.raises(UsageError, match='GPU'):
        run(**OPTIONS, out_dir=tmp_path, **wrong)
