"""The evidence: its rows, how trainings go on, the control without attention, and the store behind the pages."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from mmengine.hooks import Hook
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner

from benchmarks import evidence as tool
from benchmarks.evidence.networks import COMPARED, NETWORKS
from benchmarks.evidence.recipe import make_config
from benchmarks.evidence.rows import METHODS, ROWS, SHAPES, Run, runs, select
from benchmarks.evidence.store import CHANCE, FILE, Store
from benchmarks.evidence.training import train
from benchmarks.tests.chance import chance
from mmsoft.datasets.shapes import ensure_shapes
from mmsoft.utils import UsageError

ROOT = Path(__file__).parents[2]
SMALL = dict(train=8, val=4, portraits=64, size=64, portrait_size=32)
NAME = 'classify_sima_deit'


def test_list_and_a_row_that_does_not_exist(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tool.main(['--list'])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(ROWS)
    with pytest.raises(UsageError, match='There is no row mask_rcn; the rows are mask_rcnn, '):
        tool.main(['mask_rcn'])
    with pytest.raises(UsageError, match='trials'):
        tool.main([NAME, '--iterations', '2', '--publish'])
    assert not any(tmp_path.iterdir())


def test_every_method_and_every_architecture_has_a_row():
    methods = {re.split('_(?:soft|sima|xcit)_', path.stem)[0] for path in (ROOT / 'configs').glob('*_[1-3]x.py')}
    assert methods < set(METHODS)
    assert {row.ours for row in ROWS.values()} >= {
        name for name, backbone in NETWORKS.items() if backbone.dense['type'].startswith('mmsoft.')
    }


@pytest.mark.parametrize('name', COMPARED)
def test_what_the_papers_compare_with_is_of_the_same_size(name):
    base = {'soft': 'soft_norm', 'xcit': 'sima_xcit_p8', 'deit': 'sima_deit'}[
        'deit' if 'deit' in name else 'xcit' if 'xcit' in name else 'soft'
    ]
    sizes = []
    for backbone in (NETWORKS[name], NETWORKS[base]):
        model = MODELS.build({**backbone.dense, **backbone.classifier})
        sizes.append(sum(parameter.numel() for parameter in model.parameters()))
    assert 0.85 < sizes[0] / sizes[1] < 1.15


def test_tuning_starts_from_a_classifier_of_the_same_seed(tmp_path):
    tuned, classifier = Run('tuned_upernet', 'soft', 2), Run('classifier', 'soft', 2)
    assert runs(select(['tuned_upernet_soft', 'tuned_retinanet_soft']), 2) == [
        classifier,
        tuned,
        Run('tuned_retinanet', 'soft', 2),
    ]
    weights, folder = tmp_path / 'iter_9.pth', tmp_path / classifier.name
    folder.mkdir()
    (folder / 'last_checkpoint').write_text(str(weights))
    cfg = make_config(tuned, 'data', str(tmp_path / tuned.name))
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint=str(weights))
    assert cfg.train_cfg.max_iters * cfg.train_dataloader.batch_size == 1800 and cfg.randomness.seed == 2


@pytest.mark.slow
def test_both_networks_of_a_row_are_of_one_size():
    """With the same head, so a row for each pair is enough."""
    for row in {(row.ours, row.theirs): row for row in ROWS.values() if row.theirs}.values():
        sizes = []
        for run in row.runs():
            cfg = make_config(run, 'data/shapes', 'work_dirs')
            init_default_scope(cfg.default_scope)
            sizes.append(sum(parameter.numel() for parameter in MODELS.build(cfg.model).parameters()))
        assert 0.7 < sizes[1] / sizes[0] < 1.43, row


class Interruption(Hook):
    """Ends a training after a checkpoint, but not at it."""

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == 4:
            raise KeyboardInterrupt


def test_a_row_goes_on_after_an_interruption_and_writes_nothing_else(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tool, 'SHAPES', SMALL)
    monkeypatch.setattr(
        tool,
        'subprocess',
        SimpleNamespace(
            run=lambda command, **_: train(Run(*command[3:5], int(command[5])), *command[6:8], int(command[8]))
        ),
    )  # in this process
    first, second = ROWS[NAME].runs()
    root, folder = ensure_shapes('work/shapes', **SMALL), tmp_path / 'work' / first.name
    runner = Runner.from_cfg(make_config(first, str(root), str(folder), 6))
    runner.register_hook(Interruption())
    with pytest.raises(KeyboardInterrupt):
        runner.train()
    assert (folder / 'last_checkpoint').read_text().endswith('iter_3.pth') and not (folder / 'result.json').is_file()

    tool.main([NAME, '--work-dir', 'work', '--iterations', '6'])
    result = json.loads((folder / 'result.json').read_text())
    steps = [
        json.loads(log.read_text().splitlines()[0])['step']  # the first of each process
        for log in sorted(folder.glob('*/vis_data/scalars.json'))
    ]
    assert steps == [2, 6] and (folder / 'iter_6.pth').is_file()  # from the start, it would be 2 again
    assert result['scores'].keys() == result['without_attention'].keys() == {'top-1'}
    assert result['seed'] == 0 and result['commit'] and result['settings']['config'] == 'soft_tiny_in1k'
    theirs = json.loads((tmp_path / 'work' / second.name / 'result.json').read_text())
    assert theirs['without_attention'] is None
    printed = capsys.readouterr().out
    assert re.search(rf'\| `{NAME}` +\| classifier +\| SimA-DeiT, patch 8 +\| DeiT, patch 8 +\| 0.5 / 0.5 ', printed)
    assert f'{first.name} is done' in printed and [path.name for path in tmp_path.iterdir()] == ['work']

    before = (folder / 'result.json').stat().st_mtime_ns
    tool.main([NAME, '--work-dir', 'work', '--iterations', '6'])
    assert (folder / 'result.json').stat().st_mtime_ns == before


def test_chance(tmp_path):
    held_out = dict(SHAPES, train=1, portraits=SMALL['portraits'])
    assert chance(str(ensure_shapes(tmp_path / 'shapes', **held_out))) == pytest.approx(CHANCE, abs=0.01)


def record(method, backbone, seed=0, control=None, **scores):
    return dict(
        method=method,
        backbone=backbone,
        seed=seed,
        scores=scores,
        without_attention=control,
        parameters=1e6,
        iterations=9,
        commit='1',
    )


def test_the_store_merges_and_fills_marked_tables_alone(tmp_path):
    page = tmp_path / 'evidence.md'
    text = 'By hand.\n<!-- evidence classify_soft_linformer -->\nold\n<!-- end -->\nBy hand, too.\n'
    page.write_text(text)
    run = 'classifier', 'soft_linformer'
    records = [record(*run, seed, {'top-1': 0.5}, **{'top-1': 0.8 + seed / 10}) for seed in (0, 1)]
    Store(records).publish(tmp_path)
    again = Store.load(tmp_path).merge(Store([record(*run, 0, {'top-1': 0.3}, **{'top-1': 0.7})]))
    again.publish(tmp_path)
    lines = page.read_text().splitlines()
    assert lines[0] == 'By hand.' and lines[-1] == 'By hand, too.' and 'old' not in lines
    cells = [cell.strip() for cell in next(line for line in lines if 'linformer`' in line).split('|')]
    assert cells[1:-1] == [
        '`classify_soft_linformer`',
        'classifier',
        'Linformer',
        '1.0',
        '9',
        '2',
        '0.800 (0.700–0.900)',
        '0.400 (0.300–0.500)',
    ]
    assert '0.17' in next(line for line in lines if 'chance' in line)
    assert len(Store.load(tmp_path).records) == 2
    assert Store.load(tmp_path).merge(Store()) == Store.load(tmp_path)
    page.write_text('<!-- evidence nothing -->\n<!-- end -->')
    with pytest.raises(UsageError, match='nothing'):
        again.publish(tmp_path)


def test_pairs_of_networks_stand_in_one_line():
    found = {'box AP50': 0.84, 'box AP': 0.5, 'mask AP50': 0.81, 'mask AP': 0.5}
    store = Store(
        [
            record('mask_rcnn', 'soft_norm', control={'box AP50': 0.2}, **found),
            record('mask_rcnn', 'pvt', **{**found, 'box AP50': 0.9}),
        ]
    )
    line = next(line for line in store.table(select(['mask_rcnn'])).splitlines() if 'mask_rcnn' in line)
    assert '0.840 / 0.900' in line and line.split('|')[-2].strip() == '0.200'
    assert store.table(select(['atss'])) == ''


def test_the_pages_show_the_store():
    """Whoever changes a record or a table has to publish."""
    store = Store.load(ROOT / 'docs')
    assert store.records and (ROOT / 'docs' / FILE).is_file()
    for name in select(()):
        assert store.of(ROWS[name])[0], name
