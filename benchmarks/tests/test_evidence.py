"""tools/evidence.py: its rows, how trainings go on, the control without attention, and the store behind the pages."""
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mmengine.registry import MODELS, init_default_scope

from benchmarks import evidence as tool
from benchmarks.evidence.backbones import BACKBONES, COMPARED
from benchmarks.evidence.chance import chance
from benchmarks.evidence.recipe import make_config
from benchmarks.evidence.rows import METHODS, ROWS, Run, runs, select
from benchmarks.evidence.store import FILE, Store
from mmsoft.datasets.shapes import ensure_shapes
from mmsoft.utils import UsageError

ROOT = Path(__file__).parents[2]
ENVIRONMENT = dict(os.environ, PYTHONPATH=str(ROOT))
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
    assert {row.ours.backbone for row in ROWS.values()} >= {
        name for name, backbone in BACKBONES.items() if backbone.dense['type'].startswith('mmsoft.')}


@pytest.mark.parametrize('name', COMPARED)
def test_what_the_papers_compare_with_is_of_the_same_size(name):
    base = {'soft': 'soft_norm', 'xcit': 'sima_xcit_p8', 'deit': 'sima_deit'}[
        'deit' if 'deit' in name else 'xcit' if 'xcit' in name else 'soft']
    sizes = []
    for backbone in (BACKBONES[name], BACKBONES[base]):
        model = MODELS.build({**backbone.dense, **backbone.classifier})
        sizes.append(sum(parameter.numel() for parameter in model.parameters()))
    assert 0.85 < sizes[0] / sizes[1] < 1.15


def test_tuning_starts_from_a_classifier_of_the_same_seed(tmp_path):
    tuned, classifier = Run('tuned_upernet', 'soft', 2), Run('classifier', 'soft', 2)
    assert runs(select(['tuned_upernet_soft', 'tuned_retinanet_soft']), 2) == [
        classifier, tuned, Run('tuned_retinanet', 'soft', 2)]
    weights, folder = tmp_path / 'iter_9.pth', tmp_path / classifier.name
    folder.mkdir()
    (folder / 'last_checkpoint').write_text(str(weights))
    cfg = make_config(tuned, 'data', str(tmp_path / tuned.name))
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint=str(weights))
    assert cfg.train_cfg.max_iters * cfg.train_dataloader.batch_size == 1800 and cfg.randomness.seed == 2


@pytest.mark.slow
def test_both_networks_of_a_row_are_of_one_size():
    sizes, rows = {}, {name: row for name, row in ROWS.items() if row.host}
    for run in runs(rows):
        cfg = make_config(run, 'data/shapes', 'work_dirs')
        init_default_scope(cfg.default_scope)
        sizes[run] = sum(parameter.numel() for parameter in MODELS.build(cfg.model).parameters())
    for row in rows.values():
        assert 0.7 < sizes[row.host] / sizes[row.ours] < 1.43, row


@pytest.mark.slow
def test_a_row_goes_on_after_a_kill_and_writes_nothing_else(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tool, 'SHAPES', SMALL)
    run, iterations = ROWS[NAME].ours, 20
    root = ensure_shapes('work/shapes', **SMALL)
    folder = tmp_path / 'work' / run.name
    process = subprocess.Popen([sys.executable, '-m', 'benchmarks.evidence.training', run.method, run.backbone, '0',
                                str(root), str(folder), str(iterations)],
                               env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    last = folder / 'last_checkpoint'
    while not (last.is_file() and last.read_text().endswith('iter_10.pth')) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / 'result.json').is_file()

    tool.evidence([NAME], 'work', iterations=iterations, docs=tmp_path / 'docs')
    result = json.loads((folder / 'result.json').read_text())
    first_step = [json.loads(log.read_text().splitlines()[0])['step']
                  for log in sorted(folder.glob('*/vis_data/scalars.json'))]
    assert len(first_step) == 2 and first_step[0] <= 10 < first_step[1]
    assert {step for step, _ in result['losses']} >= {10, 20}
    assert result['scores'].keys() == result['without_attention'].keys() == {'top-1'} and result['cpu_minutes'] > 0
    assert result['seed'] == 0 and result['commit'] and result['settings']['config'] == 'soft_tiny_in1k'
    printed = capsys.readouterr().out
    assert re.search(rf'\| `{NAME}` +\| classifier +\| SimA-DeiT, patch 8 +\| DeiT, patch 8 +\| 0.5 / 0.5 ', printed)
    assert 'about 0 minutes left' in printed and not (tmp_path / 'docs').exists()

    before = (folder / 'result.json').stat().st_mtime_ns
    tool.evidence([NAME], 'work', iterations=iterations)
    assert (folder / 'result.json').stat().st_mtime_ns == before


def test_chance(tmp_path):
    guess = chance(str(ensure_shapes(tmp_path / 'shapes', **SMALL)))
    assert guess['top-1'] == pytest.approx(1 / 6)
    assert 0 < guess['mIoU'] < 0.1
    assert 0 <= guess['box AP50'] < 0.5


def record(method, backbone, seed=0, control=None, **scores):
    return dict(method=method, backbone=backbone, seed=seed, scores=scores, without_attention=control, parameters=1e6,
                iterations=9, cpu_minutes=1., losses=[(1, 2.), (2, 1.)], commit='1')


def test_the_store_merges_and_fills_marked_tables_alone(tmp_path):
    page = tmp_path / 'evidence.md'
    text = 'By hand.\n<!-- evidence classify_soft_linformer -->\nold\n<!-- end -->\nBy hand, too.\n'
    page.write_text(text)
    run = 'classifier', 'soft_linformer'
    records = [record(*run, seed, {'top-1': .5}, **{'top-1': .8 + seed / 10}) for seed in (0, 1)]
    Store({'top-1': .1}, records).publish(tmp_path)
    again = Store.load(tmp_path).merge(Store({}, [record(*run, 0, {'top-1': .3}, **{'top-1': .7})]))
    again.publish(tmp_path)
    lines = page.read_text().splitlines()
    assert lines[0] == 'By hand.' and lines[-1] == 'By hand, too.' and 'old' not in lines
    cells = [cell.strip() for cell in next(line for line in lines if 'linformer`' in line).split('|')]
    assert cells[1:-1] == ['`classify_soft_linformer`', 'classifier', 'Linformer', '1.0', '9', '1.0', '2',
                           '0.800 (0.700–0.900)', '0.400 (0.300–0.500)']
    assert '0.10' in next(line for line in lines if 'chance' in line)
    assert len(Store.load(tmp_path).records) == 2 and (tmp_path / 'images/evidence_losses.png').is_file()
    assert Store.load(tmp_path).merge(Store()) == Store.load(tmp_path)
    page.write_text('<!-- evidence nothing -->\n<!-- end -->')
    with pytest.raises(UsageError, match='nothing'):
        again.publish(tmp_path)


def test_pairs_of_networks_stand_in_one_line():
    found = {'box AP50': .84, 'box AP': .5, 'mask AP50': .81, 'mask AP': .5}
    store = Store(dict.fromkeys(found, .04), [record('mask_rcnn', 'soft_norm', control={'box AP50': .2}, **found),
                                              record('mask_rcnn', 'pvt', **{**found, 'box AP50': .9})])
    line = next(line for line in store.table(select(['mask_rcnn'])).splitlines() if 'mask_rcnn' in line)
    assert '0.840 / 0.900' in line and line.split('|')[-2].strip() == '0.200'
    assert store.table(select(['atss'])) == ''


def test_the_pages_show_the_store():
    """Whoever changes a record or a table has to publish."""
    store = Store.load(ROOT / 'docs')
    assert store.records and (ROOT / 'docs' / FILE).is_file()
    for name in select(()):
        assert store.of(ROWS[name].ours), name
