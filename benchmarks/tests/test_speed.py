"""The benchmark: what it measures, what it takes from earlier runs, and what it prints."""
import subprocess
import sys

import pandas as pd
import pytest
import torch
from torch import nn

from benchmarks import speed, worker
from benchmarks.contenders import CONTENDERS, IMAGES, WEIGHTS, build_contender, contender, fold_norms
from benchmarks.kernels import errors, share_above_cut
from benchmarks.speed import ALLOCATORS, KEY, Workers, run, run_benchmark
from benchmarks.speed_report import ratios, write_report
from benchmarks.worker import Case, Settings
from mmsoft.utils import UsageError

OPTIONS = dict(models=['soft_norm_nano', 'resnet50'], sizes=[(32, 64)], passes=['eval', 'train'], spectrum=(32, 32),
               checkpoint=None, rounds=1, patience=30.)
RUN = dict(model='soft_small', weights='fresh', image='noise', height=64, width=64, backward=False, allocator='glibc',
           round=0, seconds=1., memory=1e6, note='', machine='', device='cpu', threads=1, dtype='float32', batch=1,
           compile=False, torch='2', commit='')


def runs(**columns):
    length = max(len(column) for column in columns.values())
    return pd.DataFrame({**{name: [value] * length for name, value in RUN.items()}, **columns})


@pytest.fixture
def answers(monkeypatch):
    """Workers that measure nothing; the cases that they were asked for."""
    asked = []

    def answer(self, case, allocator, with_memory=True):
        asked.append((case, allocator, with_memory))
        if case.model == 'resnet50':
            return dict(seconds=float('nan'), memory=None, note='out of memory')
        return dict(seconds=100. if case.model == 'swin_tiny' else 1., memory=10**6, note='')

    monkeypatch.setattr(Workers, 'run', answer)
    return asked


@pytest.mark.slow
def test_a_run_writes_the_report_and_publishes_on_request(tmp_path):
    report = run(**OPTIONS, out_dir=tmp_path / 'out', docs=tmp_path).read_text()
    table = pd.read_csv(tmp_path / 'out/runs.csv')
    assert len(table) == 2 * len(ALLOCATORS) * (len(WEIGHTS) * len(IMAGES) + 1) and table.note.isna().all()
    assert (table.seconds > 0).all() and (table.memory[table['round'] == 0] > 0).all() and {*KEY} < {*table.columns}
    for words in ('Evaluation', 'Training', '32×64 glibc', '32×64 keeps pages', 'SOFT-Norm-Nano', 'photograph'):
        assert words in report
    for plot in ('seconds.png', 'memory.png'):
        assert (tmp_path / 'out' / plot).read_bytes().startswith(b'\x89PNG')
    assert not (tmp_path / 'data').exists()
    assert run(**OPTIONS, out_dir=tmp_path / 'out', docs=tmp_path, publish=True).read_text() == report
    assert len(pd.read_csv(tmp_path / 'data/benchmark.csv')) == len(table)
    assert len(pd.read_csv(tmp_path / 'data/benchmark_kernels.csv')) == len(WEIGHTS) * len(IMAGES)


def test_only_the_same_measurement_is_not_repeated(tmp_path, answers, monkeypatch):
    file, weights = tmp_path / 'runs.csv', tmp_path / 'weights.pth'
    weights.write_bytes(b'1')
    same = dict(models=['soft_tiny'], sizes=[(64, 64)], passes=[False], file=file, rounds=1, checkpoint=str(weights))
    cases = 2 * 2 * (len(WEIGHTS) + 1)
    table = run_benchmark(**same)
    assert len(answers) == len(table) == cases
    again = run_benchmark(**same)
    assert len(answers) == cases and again.seconds.tolist() == table.seconds.tolist()
    for other in (dict(models=['pvt_tiny']), dict(sizes=[(64, 96)]), dict(passes=[True]),
                  dict(settings=Settings(dtype='bfloat16')), dict(settings=Settings(batch=2)), dict(rounds=2)):
        before = len(answers)
        expected = (cases if 'models' not in other else 2) * other.get('rounds', 1)
        assert len(run_benchmark(**dict(same, **other))) == expected
        assert len(answers) > before, other
    before = len(answers)
    weights.write_bytes(b'2')
    run_benchmark(**same)
    assert len(answers) == before + 4  # of this file alone, two images and two allocators
    monkeypatch.setattr(speed, 'code_version', lambda: ('other', 'commit'))
    assert len(run_benchmark(**same)) == cases and len(answers) == before + 4 + cases
    pd.DataFrame([dict(model='soft_tiny', seconds=1.)]).to_csv(file)
    with pytest.raises(UsageError, match='older version'):
        run_benchmark(**same)


def test_a_failure_and_a_slow_contender_do_not_end_the_run(tmp_path, answers):
    table = run_benchmark(['resnet50', 'swin_tiny', 'pvt_tiny'], [(64, 64), (32, 32)], [False], tmp_path / 'r.csv',
                          rounds=3)
    assert table.groupby(['model', 'height']).size().to_dict() == {
        ('resnet50', 32): 2, ('swin_tiny', 32): 2, ('pvt_tiny', 32): 6, ('pvt_tiny', 64): 6}
    assert {turn for _, _, turn in answers} == {True, False}
    report = write_report(table, pd.DataFrame(), tmp_path).read_text()
    assert 'PVT-Tiny' in report and '* ResNet-50, 32×32: out of memory' in report


def test_a_worker_that_ends_or_cannot_says_so(monkeypatch):
    with Workers(Settings()) as workers:
        assert 'size' in workers.run(Case('resnet50', 'fresh', 'noise', 0, 32, False), 'glibc')['note']
        workers.processes['resnet50', 'glibc'].kill()
        assert 'out of memory' in workers.run(Case('resnet50', 'fresh', 'noise', 32, 32, False), 'glibc')['note']


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='glibc is of Linux')
def test_the_second_allocator_keeps_pages(monkeypatch):
    program = ('import resource, torch; import os\n'
               'for _ in range(9): torch.ones(2**24)\n'
               'print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)')
    faults = [int(subprocess.check_output([sys.executable, '-c', program], env=dict(env)))
              for env in ALLOCATORS.values()]
    assert faults[0] - faults[1] > 6 * 2**24 * 4 / 4096 or faults[0] < 20 * 2**14  # with huge pages there are few


def test_ratios_are_of_runs_side_by_side():
    table = runs(model=['soft_small', 'pvt_small'] * 3, round=[0, 0, 1, 1, 2, 2], seconds=[1., 2., 10., 20., 3., 3.])
    assert ratios(table)[['rival', 'ratio']].values.tolist() == [['pvt_small', 0.5]]
    table = runs(model=['soft_small', 'pvt_small'], allocator=['glibc', 'keeps pages'])
    assert ratios(table).empty


def test_the_worst_is_named(tmp_path):
    table = runs(
        model=['soft_small', 'soft_small', 'pvt_small'], weights=['fresh', 'trained', 'fresh'], seconds=[1., 4., 2.])
    assert '1.25 / 2.00' in write_report(table, pd.DataFrame(), tmp_path).read_text()


@pytest.mark.parametrize('model', ['resnet50', 'soft_norm_nano', 'sima_xcit_small', 'xcit_small'])
def test_folding_norms_changes_nothing_but_their_number(model):
    torch.manual_seed(0)
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
    few = share_above_cut('soft_norm_nano', 'alike', 'photograph', (256, 256))
    many = share_above_cut('soft_norm_nano', 'fresh', 'noise', (256, 256))
    assert len(few) == len(many) == 3 and all(0 < a <= b <= 1 for a, b in zip(few, many)) and sum(few) < sum(many)


def test_the_network_is_as_accurate_as_the_iteration():
    ours, iteration = errors('soft_norm_nano', 'alike', 'photograph', (64, 96))
    assert 0 < ours < 1e-3 and 0 < iteration < 1e-3


def test_images_of_any_size():
    for make in IMAGES.values():
        image = make(2, 96, 224)
        assert image.shape == (2, 3, 96, 224) and 0.5 < image.std() < 1.5


def test_contenders_have_rivals_and_options():
    assert {one.rival for one in CONTENDERS.values() if one.rival} <= set(CONTENDERS)
    found = contender('soft_norm_tiny:attention.bottleneck_size=6')
    assert found.backbone['attention']['bottleneck_size'] == 6 and found.label == 'SOFT-Norm-Tiny, bottleneck_size=6'
    assert 'bottleneck_size' not in CONTENDERS['soft_norm_tiny'].backbone['attention']
    for wrong in ('soft_big', 'soft_tiny:attention'):
        with pytest.raises(UsageError, match='soft_'):
            contender(wrong)


@pytest.mark.parametrize('model', ['soft_small', 'soft_norm_small'])
def test_the_published_arithmetic_is_that_of_the_network(model):
    """Held whole, at a size where nothing else is different."""
    norm = model == 'soft_norm_small'
    published = f'soft_small_published:attention.norm={norm}'
    image, maps = IMAGES['photograph'](1, 64, 64), []
    for name in (model, published):
        torch.manual_seed(0)
        with torch.no_grad():
            maps.append(build_contender(name, 'trained').eval()(image))
    for a, b in zip(*maps):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
@pytest.mark.parametrize('wrong', [dict(device='cuda'), dict(dtype='float16')])
def test_what_needs_a_gpu_says_so(tmp_path, wrong):
    with pytest.raises(UsageError, match='GPU'):
        run(**OPTIONS, out_dir=tmp_path, **wrong)
    assert worker.Settings().device == 'cpu' and not list(tmp_path.iterdir())
