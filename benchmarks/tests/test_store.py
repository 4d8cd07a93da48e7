"""Results of trainings as the store keeps them, and as the pages show them."""

import shutil
from pathlib import Path

import pytest

from benchmarks.evidence import __main__ as tool
from benchmarks.evidence import store
from benchmarks.evidence.rows import ROWS
from mmsoft.utils import UsageError

ROOT = Path(__file__).parents[2]


def test_each_row_has_so_many_seeds(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(tool, 'done', lambda *run: asked.append(run) or record(*run[1:], accuracy=0.5 + run[2] / 4))
    tool.main(['far_deit_sima', '--seeds', '2', '--work-dir', str(tmp_path)])
    assert asked == [(tmp_path, 'far_deit_sima', seed) for seed in (0, 1)] * 2
    assert '| 0.625 (0.500–0.750) |' in capsys.readouterr().out


def record(row, seed=0, control=0.5, key=None, shares=None, **scores):
    return dict(
        row=row,
        seed=seed,
        key=key or ROWS[row].key,
        scores=scores,
        without_attention=None if control is None else {next(iter(scores)): control},
        shares=shares or {},
        iterations=9,
        commit='1',
    )


def test_methods_with_other_scores_have_the_control_of_their_own():
    some = [record('method_upernet', control=0.4, mIoU=0.6), record('method_classifier', control=0.1, **{'top-1': 0.8})]
    header, _, *lines = store.table(['method_upernet', 'method_classifier'], some).splitlines()
    place = [cell.strip() for cell in header.split('|')].index('first score without attention')
    assert [line.split('|')[place].strip() for line in lines] == ['0.400', '0.100', '']
    header = store.table(['method_upernet'], some).splitlines()[0]
    assert 'without attention, mIoU' in header


def test_before_and_after_are_the_same_measure():
    course = {f'stages.0.blocks.{i}.attn': dict(share=[0.1 + i, 0.3 + i]) for i in range(2)}
    some = [dict(record('closing_sima_cvt', seed, **{'box AP50': 0.5}), course=course) for seed in range(2)]
    header, _, line, _ = store.table(['closing_sima_cvt'], some).splitlines()
    cells = dict(zip(*([cell.strip() for cell in one.split('|')] for one in (header, line))))
    assert (cells['shares before'], cells['shares after']) == ('0.6', '0.8')
    assert cells['without attention, box AP50'] == '0.500' and 'share by stage' not in cells


def test_the_store_merges_and_fills_marked_tables_alone(tmp_path):
    page = tmp_path / 'evidence.md'
    page.write_text('By hand.\n<!-- evidence far_deit_sima architecture_pvt -->\nold\n<!-- end -->\nBy hand, too.\n')
    shares = {'stages.0.blocks.0.attn': 0.2, 'stages.0.blocks.1.attn': 0.5, 'stages.1.blocks.0.attn': 0.01}
    old = [
        record('far_deit_sima', 0, accuracy=0.7, shares=shares),
        record('far_deit_sima', 1, accuracy=0.9, shares={**shares, 'stages.1.blocks.0.attn': 0.3}),
        record('far_deit_softmax', key='another', accuracy=0.9),
    ]
    store.publish(tmp_path, store.merge(old, [record('far_deit_sima', 0, control=0.4, accuracy=0.8, shares=shares)]))
    lines = page.read_text().splitlines()
    assert lines[0] == 'By hand.' and lines[-1] == 'By hand, too.' and 'old' not in lines
    cells = [cell.strip() for cell in next(line for line in lines if 'SimA, in DeiT' in line).split('|')]
    assert cells[2:-1] == ['9', '2', '0.850 (0.800–0.900)', '0.450 (0.400–0.500)', '0.5 / 0.01']
    assert len(store.load(tmp_path)) == 2
    assert store.merge(store.load(tmp_path), []) == store.load(tmp_path)
    page.write_text('<!-- evidence nothing -->\n<!-- end -->')
    with pytest.raises(UsageError, match='nothing'):
        store.publish(tmp_path, old)


def test_the_pages_show_the_store(tmp_path):
    """A changed record or table must be published."""
    records = store.load(ROOT / 'docs')
    for page in (ROOT / 'docs').glob('*.md'):
        shutil.copy(page, tmp_path)
    (tmp_path / 'data').mkdir()
    shutil.copy(ROOT / 'docs/data/zoo.csv', tmp_path / 'data')
    store.publish(tmp_path, records)
    assert records and store.merge(records, []) == records
    for page in tmp_path.glob('*.md'):
        assert page.read_text() == (ROOT / 'docs' / page.name).read_text(), page.name
