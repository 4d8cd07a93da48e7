import csv
import json
from pathlib import Path

import pytest
import torch
from reference_weights import reference_images, reference_state_dict

from mmsoft.analysis import benchmark_worker
from mmsoft.analysis.accuracy import measure_accuracy
from mmsoft.analysis.benchmark import Record, run_benchmark
from mmsoft.analysis.benchmark_command import QUICK, benchmark
from mmsoft.analysis.benchmark_report import growth, write_report
from mmsoft.analysis.contenders import CONTENDERS, ENTRANTS, build_contender
from mmsoft.analysis.parity_weights import parity_images, parity_tensor
from mmsoft.utils.errors import UsageError

KEYS = Path(__file__).parents[1] / 'data' / 'soft_tiny.keys.json'


def test_quick_run_writes_tables_plots_and_the_machine(tmp_path):
    report = benchmark(**dict(QUICK, sizes=[(64, 64)], passes=[False, True], out_dir=tmp_path)).read_text()
    for words in ('SOFT-Nano as published', '## Forward + backward', '## Accuracy', 'torch', 'cores', 'time.png'):
        assert words in report
    saved = json.loads((tmp_path / 'benchmark.json').read_text())
    assert len(saved['records']) == 4 and 'processor' in saved['machine']
    for record in saved['records']:
        assert not record['note'] and len(record['seconds']) == QUICK['repeats'] and record['memory'] > 0
    assert len(list(csv.DictReader((tmp_path / 'benchmark.csv').open()))) == 4
    for plot in ('time.png', 'memory.png'):
        assert (tmp_path / plot).read_bytes().startswith(b'\x89PNG')


def test_a_failure_and_a_slow_contender_do_not_end_the_run(monkeypatch, tmp_path):
    class Worker:

        def __init__(self, case, settings):
            self.case = case

        def first_run(self):
            if self.case.model == 'resnet50':
                raise benchmark_worker.MeasurementError('out of memory')
            return benchmark_worker.FirstRun(100. if self.case.model == 'swin_tiny' else 1., 10**6, None)

        def seconds(self):
            return 2.

        def close(self):
            pass

    monkeypatch.setattr('mmsoft.analysis.benchmark.Worker', Worker)
    *_, records = run_benchmark(['resnet50', 'swin_tiny', 'pvt_tiny'], [(64, 64), (32, 32)], [False], repeats=3)
    assert [(r.size, r.note, r.seconds) for r in records] == [
        ((32, 32), 'out of memory', []), ((32, 32), 'one run', [100.]), ((32, 32), '', [2., 2., 2.]),
        ((64, 64), 'out of memory', []), ((64, 64), 'left out, too slow', []), ((64, 64), '', [2., 2., 2.])]
    assert 'left out' in write_report(records, tmp_path, dict(machine='none')).read_text()


@pytest.mark.parametrize('exponent', [1., 1.5, 2.])
def test_growth_is_fitted_to_large_images(exponent):
    sizes = [(64, 64), (512, 512), (800, 1344), (2048, 2048)]
    records = [Record('swin_tiny', size, False) for size in sizes]
    for record in records:
        record.seconds = [1. if record.size[0] < 100 else (record.tokens / 1e5)**exponent]
    assert growth(records, 'median') == pytest.approx(exponent)
    assert growth(records[:1], 'median') is None and growth(records, 'memory') is None


@pytest.mark.parametrize('attention_norm', [False, True], ids=['soft', 'soft_norm'])
def test_published_arithmetic_computes_the_same(attention_norm):
    nano = ENTRANTS['soft_nano']
    nano = nano._replace(backbone=dict(nano.backbone, attention_norm=attention_norm))
    fast, dense = (build_contender(nano._replace(dense=dense)).double() for dense in (False, True))
    images = parity_images(2, 72, 96).double()
    for a, b in zip(fast(images), dense(images)):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


def test_accuracy_is_within_the_target():
    result, = measure_accuracy(['soft_nano', 'soft_nano_published'], [(64, 96)])
    assert 0 < result.error < 1e-3 and 0 < result.noise < 1e-3 < result.largest


def test_parity_weights_are_those_of_the_fixtures():
    for name, tensor in reference_state_dict(KEYS).items():
        assert torch.equal(parity_tensor(name, tuple(tensor.shape)), tensor)
    assert torch.equal(parity_images(2, 40, 30, 3), reference_images(2, 40, 30, 3))


def test_every_rival_takes_part():
    assert {contender.rival for contender in CONTENDERS.values() if contender.rival} <= set(CONTENDERS)


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_no_gpu(tmp_path):
    with pytest.raises(UsageError, match='needs a GPU'):
        benchmark(**dict(QUICK, passes=[False], out_dir=tmp_path, device='cuda'))


def test_a_cpu_without_float16(tmp_path):
    with pytest.raises(UsageError, match='GPU'):
        benchmark(**dict(QUICK, passes=[False], out_dir=tmp_path, dtype='float16'))
