"""The tables of docs/benchmark_method.md that are measured apart from `make bench`."""

from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from benchmarks import accuracy, parts, spin
from benchmarks.figures.inputs import build
from mmsoft.ops import inverse

NANO = dict(embed_dims=[16, 32], num_heads=[1, 2], depths=[1, 1], sampling_ratios=[2, 2])
PAGE = '<!-- benchmark {} -->\n<!-- end -->\n'


def narrow(table):
    return [' '.join(line.split()) for line in table.splitlines()]


def network(norm):
    attention = dict(type='SOFTAttention', norm=norm, initial_gamma=0.3)
    return build(dict(type='mmsoft.SOFT', arch=NANO, out_indices=(0, 1), attention=attention))


@pytest.mark.parametrize('norm', [False, True])
@torch.no_grad()
def test_errors_are_those_of_the_inverse(norm, monkeypatch):
    """144 tokens take the series: cut to six terms it errs, and the iteration does not."""
    image = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    exact = accuracy.errors(network(norm), image)
    assert 0 < exact['error'] < 1e-4 and 0 < exact['iteration'] < 1e-4
    monkeypatch.setitem(inverse._TERMS, torch.float32, 6)
    cut = accuracy.errors(network(norm), image)
    assert cut['error'] > 10 * exact['error'] and cut['iteration'] == exact['iteration']


def test_errors_are_parts_of_the_largest_value():
    class Rounded(torch.nn.Module):
        def forward(self, x):
            return (8 * x + (2 if x.dtype == torch.float32 else 0), x)

    assert accuracy.errors(Rounded(), torch.tensor([1.0, -2.0])) == dict(error=0.125, iteration=0.125)


def test_the_part_above_the_cut():
    """Of nearly equal tokens most eigenvalues are below it, of different ones none is."""
    image = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    wide, narrow = network(True), network(True)
    for module in narrow.modules():
        if isinstance(module, accuracy.SOFTAttention):
            module.bottleneck.norm.weight.data.fill_(3)
    assert accuracy.above(wide, image)['stage0'] < 0.5
    assert accuracy.above(narrow, image) == dict(stage0=1, stage1=1)


def test_the_table_of_errors_is_published(tmp_path, monkeypatch, capsys):
    page = tmp_path / 'benchmark_method.md'
    page.write_text(PAGE.format('accuracy'))
    (tmp_path / 'data').mkdir()
    row = dict(network='SOFT', gamma=0.3, image='grace_hopper', error=2e-6, iteration=3e-5, stage0=1.0, stage1=0.25)
    monkeypatch.setattr(accuracy, 'measure', lambda arch, hw: [dict(row, arch=arch, rows=hw[0])])
    accuracy.main(['--arch', 'tiny', '--size', '64'], docs=tmp_path)
    assert '| SOFT' not in page.read_text()
    accuracy.main(['--publish'], docs=tmp_path)
    for text in (page.read_text(), capsys.readouterr().out):
        cells = [cell.strip() for cell in text.split('\n| SOFT ')[1].split('|')[1:-1]]
        assert cells[:5] == ['0.3', 'photograph', '100%, 25%', '2e-06', '3e-05']
    table = pd.read_csv(tmp_path / 'data/accuracy.csv')
    assert (table.arch[0], table.rows[0]) == ('small', 512)


def test_threads_beside_a_process(tmp_path, monkeypatch):
    """Each way of waiting has a process with its variable, and the busy one does not outlive its turn."""
    others, seen = [], []

    class Other:
        def __init__(self, command):
            self.running = True
            others.append(self)

        def kill(self):
            self.running = False

        def wait(self):
            assert not self.running

    def answer(cases, allocator, **environment):
        busy = sum(other.running for other in others)
        seen.append((busy, environment.get('GOMP_SPINCOUNT')))
        return [dict(seconds=(1 + busy) * case.height / 1000) for case in cases]

    monkeypatch.setattr(spin, 'subprocess', SimpleNamespace(Popen=Other))
    monkeypatch.setattr(spin, 'measure_all', answer)
    page = tmp_path / 'benchmark_method.md'
    page.write_text(PAGE.format('spin'))
    (tmp_path / 'data').mkdir()
    spin.main(['--sizes', '64', '32x64', '--rounds', '2', '--publish'], docs=tmp_path)
    assert seen == [(busy, count) for busy in (0, 1) for count in (None, '3000', '1000')] * 2
    lines = narrow(page.read_text())
    assert lines[1] == '| ms | 64² | 32×64 |'
    assert lines[3] == '| alone, default | 64 (1.0 ×) | 32 (1.0 ×) |'
    assert lines[8] == '| beside a busy process, 1000 | 128 (2.0 ×) | 64 (2.0 ×) |'
    assert len(pd.read_csv(tmp_path / 'data/spin.csv')) == 24


def test_parts_are_timed_in_turns(tmp_path, monkeypatch):
    codes = []

    class Timer:
        def __init__(self, code, globals, num_threads):
            assert globals['x'].shape == (4, 4)
            self.code = code

        def blocked_autorange(self, min_run_time):
            codes.append(self.code)
            return SimpleNamespace(median=len(self.code) / 1000)

    make = 'x = torch.randn(4, 4)'
    monkeypatch.setattr(parts, 'Timer', Timer)
    monkeypatch.setattr(parts, 'PARTS', [parts.Part('one', make, 'x @ x', 'x'), parts.Part('same', make, 'x', 'x')])
    page = tmp_path / 'benchmark_method.md'
    page.write_text(PAGE.format('parts'))
    (tmp_path / 'data').mkdir()
    parts.main(['--rounds', '2', '--publish'], docs=tmp_path)
    table = pd.read_csv(tmp_path / 'data/parts.csv')
    assert table.part.tolist() == ['one', 'one', 'same', 'same'] and table['round'].tolist() == [0, 1, 0, 1]
    assert codes == ['x @ x', 'x'] * 2 + ['x'] * 4
    assert (table.chosen.tolist(), table.other.tolist()) == ([5, 5, 1, 1], [1] * 4)
    table = table.assign(chosen=[1.0, 3.0, 2.0, 2.0], other=[2.0, 4.0, 4.0, 2.0])
    assert narrow(parts.text(table))[2:] == ['| one | 2.0 | 3.0 | 0.62 |', '| same | 2.0 | 3.0 | 0.75 |']
    assert '| one ' in page.read_text()


@torch.no_grad()
def test_both_ways_of_a_part_compute_the_same(monkeypatch):
    """What is timed is the network's own code, and its alternative gives the same numbers, in other runs."""
    net, seen = parts.SOFT('small').eval(), []
    monkeypatch.setattr(parts.blocks, 'RUN_ELEMENTS', 2**16)
    net.stages[0].blocks[0].ffn.layers.register_forward_hook(lambda *_: seen.append(1))
    for part in parts.PARTS:
        torch.manual_seed(0)
        names = dict(torch=torch, network=net, blocks=parts.blocks)
        exec(part.setup.replace('800', '80').replace('1344', '96').replace('200', '20').replace('336', '24'), names)
        results = []
        for code in (part.other, part.chosen):
            for line in code.split('; '):
                exec(line if '= ' in line else f'result = ({line}).clone()', names)
            results.append(names['result'])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert len(seen) == 1 + 2 + 8 + 2  # the whole map, then two runs; a quarter of these, then two again
