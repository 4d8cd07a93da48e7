"""The benchmark: what it measures, what it takes from earlier runs, and what it prints."""

import itertools
import runpy
import shutil
import subprocess
import sys
from types import SimpleNamespace

import matplotlib
import pandas as pd
import pytest
import torch

from benchmarks import accuracy, common, gpu, parts, speed, spin
from benchmarks.common import MARKED, ROOT, read_table
from benchmarks.contenders import contender
from benchmarks.speed import KEY, main, plan, run_benchmark
from benchmarks.speed_report import overview, report, texts
from benchmarks.targets import TARGETS, Run, ablations_text, ratios, targets_text
from benchmarks.worker import ALLOCATORS, Case
from benchmarks.zoo import published_models
from mmsoft.utils import UsageError

RUN = dict(
    model='soft_small',
    height=64,
    width=64,
    backward=False,
    allocator='glibc',
    round=0,
    seconds=1.0,
    memory=1e6,
    note='',
    machine='',
    device='cpu',
    threads=1,
    dtype='float32',
    batch=1,
    compile=False,
    torch='2',
    commit='',
)


def runs(**columns):
    length = max(len(column) for column in columns.values())
    return pd.DataFrame({**{name: [value] * length for name, value in RUN.items()}, **columns})


@pytest.fixture
def answers(monkeypatch):
    """Workers that measure nothing; the cases that they were asked for."""
    asked = []

    def answer(cases, allocator):
        asked.extend((case, allocator) for case in cases)
        failed = dict(seconds=float('nan'), memory=None, note='out of memory')
        seconds = dict(swin_tiny=100.0)
        return [
            failed if case.model == 'resnet50' else dict(seconds=seconds.get(case.model, 1.0), memory=10**6, note='')
            for case in cases
        ]

    monkeypatch.setattr(speed, 'measure_all', answer)
    return asked


def test_a_run_writes_the_report_and_publishes_on_request(tmp_path, capsys):
    command = [
        '--models',
        'soft_norm_nano:attention.bottleneck_size=2',
        '--sizes',
        '0x32',
        '32x64',
        '--rounds',
        '1',
        '--device',
        'cpu',
        '--out-dir',
        str(tmp_path / 'out'),
    ]
    main(command, docs=tmp_path)
    report = (tmp_path / 'out/benchmark.md').read_text()
    table = pd.read_csv(tmp_path / 'out/runs.csv')
    assert len(table) == 4 * len(ALLOCATORS) and {*KEY} < {*table.columns}
    measured = table[table.height > 0]
    assert measured.note.isna().all() and (measured.seconds > 0).all() and (measured.memory > 0).all()
    assert table[table.height == 0].note.str.contains('Error').all()
    said = capsys.readouterr().out
    for words in ('Evaluation', 'Training', '32×64 glibc', '32×64 keeps pages', 'SOFT-Norm-Nano, bottleneck_size=2'):
        assert words in report and words in said
    assert not (tmp_path / 'data').exists()
    for name in ('benchmark.md', 'benchmark_method.md'):
        (tmp_path / name).write_text('Old.\n\n<!-- benchmark training -->\nold\n<!-- end -->\n\nNew.')
    (tmp_path / 'figures').mkdir()
    shutil.copy(ROOT / 'docs/figures/speed.py', tmp_path / 'figures')
    main([*command, '--publish'], docs=tmp_path)
    assert (tmp_path / 'out/benchmark.md').read_text() == report
    assert len(pd.read_csv(tmp_path / 'data/benchmark.csv')) == len(table)
    for name in ('benchmark.md', 'benchmark_method.md'):
        page = (tmp_path / name).read_text()
        assert page.startswith('Old.\n') and page.endswith('New.')
        assert '\nold\n' not in page and '| SOFT-Norm-Nano' in page
    assert {path.stem for path in tmp_path.glob('images/*')} == {'speed_accuracy', 'tokens'}


def test_the_pages_are_of_the_data():
    found = texts(read_table(ROOT / 'docs/data/benchmark.csv'))
    for table in (accuracy, parts, spin):
        name = table.__name__.rpartition('.')[2]
        found[name] = table.text(read_table(ROOT / f'docs/data/{name}.csv'))
    page = ''.join((ROOT / f'docs/{name}.md').read_text() for name in ('benchmark', 'benchmark_method'))
    assert {place[3] for place in MARKED.finditer(page)} == {*found}
    assert all(text and text in page for text in found.values())


def test_other_machines_are_of_their_data():
    page, rows = (ROOT / 'docs/benchmark_method.md').read_text().replace(' †', ''), {}
    for machine in ('amd', 'amd_avx512'):
        for line in targets_text(read_table(ROOT / f'docs/data/benchmark_{machine}.csv')).splitlines()[2:]:
            _, title, _, *cells, _, _ = (cell.strip() for cell in line.split('|'))
            rows.setdefault(title, []).extend(cell.split()[0] for cell in cells)  # the medians
    assert all(f'| {title} | {" | ".join(cells)} |' in page for title, cells in rows.items()) and len(rows) > 20


def test_scores_of_the_figure_are_those_of_the_metafiles():
    with matplotlib.rc_context():
        found = runpy.run_path(str(ROOT / 'docs/figures/speed.py'))['SCORES']
    published = published_models(ROOT / 'model-index.yml')
    for name, *configs in (
        ('soft_norm_tiny', 'soft_tiny_in1k', 'retinanet_soft_tiny_1x'),
        ('soft_norm_small', 'soft_small_in1k', 'retinanet_soft_small_1x'),
        ('sima_xcit_small', 'sima_xcit_small_12_p16_in1k'),
        ('xcit_small', 'xcit_small_12_p16_in1k'),
    ):
        label, *_, average, top1 = found[name]
        scores = {key: value for config in configs for key, value in published[config]['Scores'].items()}
        assert (label, average, top1) == (contender(name).label, scores.get('box AP'), scores['Top 1 Accuracy'])


@pytest.mark.slow
def test_the_figures_are_of_the_data(tmp_path):
    shutil.copytree(ROOT / 'docs/data', tmp_path / 'data')
    for script in ('speed', 'closing'):
        subprocess.run([sys.executable, ROOT / f'docs/figures/{script}.py', tmp_path], check=True)
    for drawn in (tmp_path / 'images').iterdir():
        published = (ROOT / 'docs/images' / drawn.name).read_text()
        if f'Matplotlib v{matplotlib.__version__},' in published:
            assert drawn.read_text() == published, drawn.name


def test_the_plan_has_what_the_page_says():
    table = pd.DataFrame(
        dict(RUN, **dict(case._asdict(), allocator=allocator)) for case in plan() for allocator in ALLOCATORS
    )
    assert all(contender(case.model) for case in plan())
    found = texts(table)
    assert all(found.values())
    assert found['targets'].count('| met ') == 6 and len(found['targets'].splitlines()) == len(TARGETS) + 2
    assert '| not met |' in found['targets'] and 'Transformer' in found['ablations']
    assert '**A training' in found['short'] and found['short'].count(' / ') == 17
    assert ' met' not in texts(table[table.allocator == 'glibc'])['targets']


def test_images_of_other_sizes_do_not_enter_a_table():
    table = pd.DataFrame(
        dict(RUN, **dict(case._asdict(), allocator=allocator)) for case in plan() for allocator in ALLOCATORS
    )
    others = (
        table[table.height == 224].assign(height=side, width=side, seconds=50.0, memory=5e7) for side in (512, 800)
    )
    more = pd.concat([table, *others])
    assert overview(more) == overview(table) != ''
    lines, rows = ([' '.join(line.split()) for line in ablations_text(one).splitlines()] for one in (more, table))
    assert lines[2 : len(rows)] == rows[2:] and len(lines) == 3 * len(rows) - 4
    assert lines[len(rows)].startswith('| Transformer, 512×512 | 0.02 (1.00) |')


def test_nothing_is_measured_when_time_is_over(tmp_path, answers, monkeypatch):
    cases = [Case('soft_tiny', 64, 64, False)]
    assert run_benchmark(cases, tmp_path / 'runs.csv', until=0.0).empty and not answers
    for publish in ([], ['--publish']):
        with pytest.raises(UsageError, match='time ended'):
            main(['--minutes', '0', '--device', 'cpu', '--out-dir', str(tmp_path), *publish], docs=tmp_path / 'docs')
    monkeypatch.setattr(speed, 'run_benchmark', lambda asked, *_: cases.extend(asked) or runs(model=['soft_tiny']))
    with pytest.raises(UsageError, match='time ended'):  # some were measured
        main(['--out-dir', str(tmp_path), '--threads', '3', '--batch', '2', '--publish'], docs=tmp_path / 'docs')
    assert {(case.threads, case.batch) for case in cases[1:]} == {(3, 2)}
    assert not (tmp_path / 'docs').exists()


def test_backbones_take_turns(tmp_path, answers):
    models = ['pvt_tiny', 'soft_tiny']
    run_benchmark([Case(model, 64, 64, False) for model in models], tmp_path / 'runs.csv', rounds=2)
    assert [(case.model, allocator) for case, allocator in answers] == [*itertools.product(models, ALLOCATORS)] * 2


def test_the_version_is_that_of_all_code(tmp_path, monkeypatch):
    monkeypatch.setattr(common, 'ROOT', tmp_path)
    monkeypatch.setattr(common, 'commit', lambda: '')
    versions = set()
    for file in ('mmsoft/ops/soft.py', 'benchmarks/worker.py'):
        (tmp_path / file).parent.mkdir(parents=True)
        for text in ('', 'changed'):
            (tmp_path / file).write_text(text)
            versions.add(common.code_version()[0])
    assert len(versions) == 4


def test_compiled_cases_have_a_process_each_and_one_round(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        speed,
        'measure_all',
        lambda cases, _: asked.append(cases) or [dict(seconds=1.0, memory=1, note='')] * len(cases),
    )
    for compiled, count in ((True, 2), (False, 3)):
        cases = [Case('soft_tiny', size, size, False, dtype='bfloat16', compile=compiled) for size in (64, 96)]
        monkeypatch.setattr(speed, 'ALLOCATORS', ['glibc'])
        assert len(run_benchmark(cases, tmp_path / f'{compiled}.csv', rounds=3)) == 2 * (1 if compiled else 3)
        assert len(asked) == count and {len(one) for one in asked} == {1 if compiled else 2}
        asked.clear()


def test_only_the_same_measurement_is_not_repeated(tmp_path, answers, monkeypatch):
    file = tmp_path / 'runs.csv'
    same = dict(cases=[Case('soft_tiny', 64, 64, False)], file=file, rounds=1)
    table = run_benchmark(**same)
    assert len(answers) == len(table) == 2
    again = run_benchmark(**same)
    assert len(answers) == 2 and again.seconds.tolist() == table.seconds.tolist()
    for other in (
        dict(cases=[Case('pvt_tiny', 64, 64, False)]),
        dict(cases=[Case('soft_tiny', 64, 96, False)]),
        dict(cases=[Case('soft_tiny', 64, 64, True)]),
        dict(cases=[Case('soft_tiny', 64, 64, False, dtype='bfloat16')]),
        dict(cases=[Case('soft_tiny', 64, 64, False, batch=2)]),
        dict(rounds=2),
    ):
        before = len(answers)
        assert len(run_benchmark(**dict(same, **other))) == 2 * other.get('rounds', 1)
        assert len(answers) == before + 2, other
    others = dict(
        code_version=lambda: ('other', 'commit'),
        processor=lambda device: 'other',
        torch=SimpleNamespace(__version__='other'),
    )
    for name, other in others.items():
        before = len(answers)
        monkeypatch.setattr(speed, name, other)
        assert len(run_benchmark(**same)) == 2 and len(answers) == before + 2, name
    pd.DataFrame([dict(model='soft_tiny', seconds=1.0)]).to_csv(file)
    with pytest.raises(UsageError, match='older version'):
        run_benchmark(**same)


def test_a_failure_and_a_slow_contender_do_not_end_the_run(tmp_path, answers):
    models = ['resnet50', 'swin_tiny', 'pvt_tiny']
    cases = [Case(model, side, side, False) for model in models for side in (64, 32)]
    table = run_benchmark(cases, tmp_path / 'r.csv', rounds=3)
    assert table.groupby(['model', 'height']).size().to_dict() == {
        (model, height): 6 if model == 'pvt_tiny' else 2 for model in models for height in (32, 64)
    }
    assert 'PVT-Tiny' in report(table) and '* ResNet-50, 32×32: out of memory' in report(table)


def test_ratios_are_of_runs_side_by_side():
    pair = Run('soft_small', 64, 64), Run('pvt_small', 64, 64)
    table = runs(
        model=['soft_small', 'pvt_small'] * 3, round=[0, 0, 1, 1, 2, 2], seconds=[1.0, 2.0, 10.0, 20.0, 3.0, 3.0]
    )
    assert sorted(ratios(table, 'time', *pair)) == [0.5, 0.5, 1.0]
    assert 'SOFT-Small : PVT-Small' in report(table) and '0.50 (1.00)' in report(table)
    table = runs(model=['soft_small', 'pvt_small'], allocator=['glibc', 'keeps pages'])
    assert ratios(table, 'time', *pair).empty and ' : ' not in report(table)


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
@pytest.mark.parametrize('wrong', [['--device', 'cuda'], ['--dtype', 'float16', '--models', 'soft_tiny']])
def test_what_needs_a_gpu_says_so(tmp_path, wrong):
    with pytest.raises(UsageError, match='GPU'):
        main([*wrong, '--out-dir', str(tmp_path)])
    with pytest.raises(UsageError, match='GPU'):
        gpu.main(['--out-dir', str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_a_gpu_page(tmp_path, answers, monkeypatch):
    done = subprocess.CompletedProcess([], 0, stdout='9 passed in 1s')
    monkeypatch.setattr(gpu, 'subprocess', SimpleNamespace(run=lambda *args, **kwargs: done, PIPE=None, STDOUT=None))
    monkeypatch.setattr(gpu, 'commit', lambda: 'abc')
    command = ['--device', 'cpu', '--quick', '--out-dir', str(tmp_path)]
    gpu.main([*command, '--minutes', '0'])
    assert not answers and (tmp_path / 'gpu.md').read_text().count('not measured yet') == 2
    gpu.main(command)
    assert len(answers) == 2**5  # models, sizes, passes, allocators, dtypes
    page = (tmp_path / 'gpu.md').read_text()
    assert 'passed: 9 passed' in page and 'SOFT-Norm-Nano' in page


def test_tests_that_fail_on_the_gpu_are_told_and_kept(tmp_path, answers, monkeypatch):
    done = subprocess.CompletedProcess([], 1, stdout='what is wrong\n1 failed in 1s')
    monkeypatch.setattr(gpu, 'subprocess', SimpleNamespace(run=lambda *args, **kwargs: done, PIPE=None, STDOUT=None))
    assert gpu.main(['--device', 'cpu', '--quick', '--out-dir', str(tmp_path), '--minutes', '0']) == 1
    assert 'Tests failed: 1 failed in 1s' in (tmp_path / 'gpu.md').read_text()
    assert 'what is wrong' in (tmp_path / 'tests.txt').read_text()


@pytest.mark.parametrize('wrong', [['--batch', '0'], ['--threads', '0'], ['--rounds', '0']])
def test_counts_of_none(wrong, capsys):
    with pytest.raises(SystemExit):
        main([*wrong, '--models', 'soft_tiny'])
    assert 'whole number of at least 1' in capsys.readouterr().err
