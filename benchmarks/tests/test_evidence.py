"""tools/evidence.py, as one runs it, and the page that it writes."""
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

from benchmarks.evidence import command
from benchmarks.evidence.backbones import BACKBONES, COMPARED
from benchmarks.evidence.chance import chance
from benchmarks.evidence.recipe import make_config
from benchmarks.evidence.report import remarks, write_report
from benchmarks.evidence.rows import METHODS, ROWS, Row, Run, runs, select
from mmsoft.datasets.shapes import ensure_shapes

ROOT = Path(__file__).parents[2]
ENVIRONMENT = dict(os.environ, PYTHONPATH=str(ROOT))
SMALL = dict(train=8, val=4, portraits=64, size=64, portrait_size=32)
NAME = 'classify_sima_deit'


def tool(*args, cwd=None):
    return subprocess.run([sys.executable, str(ROOT / 'tools/evidence.py'), *args],
                          cwd=cwd, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)


def test_list():
    done = tool('--list')
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(ROWS)


def test_a_row_that_does_not_exist(tmp_path):
    done = tool('mask_rcn', cwd=tmp_path)
    assert done.returncode == 2 and not any(tmp_path.iterdir())
    assert done.stderr.startswith('There is no row mask_rcn; the rows are mask_rcnn, ')
    assert len(done.stderr.splitlines()) == 1


def test_every_method_of_the_zoo_and_every_body_has_a_row():
    zoo = {re.split('_(?:soft|sima|xcit)_', path.stem)[0] for path in (ROOT / 'configs').glob('*_[1-3]x.py')}
    assert zoo < set(METHODS)
    assert {run.backbone for row in ROWS.values() for run in [row.ours]} >= {
        name for name, backbone in BACKBONES.items() if backbone.dense['type'].startswith('mmsoft.')}


@pytest.mark.parametrize('name', COMPARED)
def test_what_the_papers_compare_with_is_a_body_but_for_what_is_compared(name):
    """Same widths and depths, other parts: hardly another size."""
    body = {'soft': 'soft_norm', 'xcit': 'sima_xcit_p8', 'deit': 'sima_deit'}[
        'deit' if 'deit' in name else 'xcit' if 'xcit' in name else 'soft']
    sizes = []
    for backbone in (BACKBONES[name], BACKBONES[body]):
        model = MODELS.build({**backbone.dense, **backbone.classifier})
        sizes.append(sum(parameter.numel() for parameter in model.parameters()))
    assert 0.85 < sizes[0] / sizes[1] < 1.15


def test_what_is_tuned_starts_from_a_classifier(tmp_path):
    tuned, classifier = Run('tuned_upernet', 'soft'), Run('classifier', 'soft')
    assert runs(select(['tuned_upernet_soft', 'tuned_retinanet_soft'])) == [
        classifier, tuned, Run('tuned_retinanet', 'soft')]
    weights, folder = tmp_path / 'iter_9.pth', tmp_path / classifier.name
    folder.mkdir()
    (folder / 'last_checkpoint').write_text(str(weights))
    cfg = make_config(tuned, 'data', str(tmp_path / tuned.name))
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint=str(weights))
    assert cfg.train_cfg.max_iters * cfg.train_dataloader.batch_size == 1800  # an epoch


@pytest.mark.slow
def test_ours_and_the_hosts_are_of_one_size():
    sizes, rows = {}, {name: row for name, row in ROWS.items() if row.host}
    for run in runs(rows):
        cfg = make_config(run, 'data/shapes', 'work_dirs')
        init_default_scope(cfg.default_scope)
        sizes[run] = sum(parameter.numel() for parameter in MODELS.build(cfg.model).parameters())
    for row in rows.values():
        assert 0.7 < sizes[row.host] / sizes[row.ours] < 1.43, row


@pytest.mark.slow
def test_a_row_goes_on_after_a_kill(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, 'SHAPES', SMALL)
    run, iterations = ROWS[NAME].ours, 20
    root = ensure_shapes('work/shapes', **SMALL)
    folder = tmp_path / 'work' / run.name
    process = subprocess.Popen(
        [sys.executable, '-m', 'benchmarks.evidence.training', *run, str(root), str(folder), str(iterations)],
        env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    last = folder / 'last_checkpoint'
    while not (last.is_file() and last.read_text().endswith('iter_10.pth')) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / 'result.json').is_file()

    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    command.evidence([NAME], 'work', 'docs', iterations=iterations)
    result = json.loads((folder / 'result.json').read_text())
    first_step = [json.loads(log.read_text().splitlines()[0])['step']
                  for log in sorted(folder.glob('*/vis_data/scalars.json'))]
    assert len(first_step) == 2 and first_step[0] <= 10 < first_step[1]
    assert {step for step, _ in result['losses']} >= {10, 20}
    assert result['scores'].keys() == {'top-1'} and result['cpu_minutes'] > 0
    page = Path('docs/evidence.md').read_text()
    assert f'| `{NAME}` | classifier | SimA-DeiT, patch 8 | DeiT, patch 8 | 0.5 / 0.5 | {iterations} |' in page
    assert Path('docs/images/evidence_losses.png').is_file()
    assert '[2 of 2, ' in capsys.readouterr().out

    before = (folder / 'result.json').stat().st_mtime_ns
    command.evidence([NAME], 'work', 'docs', iterations=iterations)
    assert (folder / 'result.json').stat().st_mtime_ns == before


def test_chance(tmp_path):
    guess = chance(str(ensure_shapes(tmp_path / 'shapes', **SMALL)))
    assert guess['top-1'] == pytest.approx(1 / 6)
    assert 0 < guess['mIoU'] < 0.1
    assert 0 <= guess['box AP50'] < 0.5


def result(run, **scores):
    return dict(run._asdict(), scores=scores, parameters=1e6, iterations=9, cpu_minutes=1., losses=[(1, 2.), (2, 1.)],
                seed=0, versions=dict(torch='2'))


def test_the_page_says_what_was_missed(tmp_path):
    ours, host = Run('mask_rcnn', 'soft_norm'), Run('mask_rcnn', 'pvt')
    found = {'box AP50': .84, 'box AP': .5, 'mask AP50': .81, 'mask AP': .5}
    results = {ours.name: result(ours, **found), host.name: result(host, **{**found, 'box AP50': .9})}
    lines = list(remarks(dict(mask_rcnn=Row(ours, host)), results))
    assert lines == [
        '`mask_rcnn`: box AP50 0.840; the bar is 0.85, **missed**.', '`mask_rcnn`: mask AP50 0.810; the bar is 0.80.',
        "`mask_rcnn` is 0.06 of box AP50 behind the host's."
    ]
    page = write_report(results, dict.fromkeys((*found, 'mIoU', 'top-1'), .1), tmp_path, tmp_path).read_text()
    assert '0.840 / 0.900' in page and '**missed**' in page


def test_the_page_has_what_stands_alone(tmp_path):
    run = ROWS['classify_soft_linformer'].ours
    page = write_report({run.name: result(run, **{'top-1': .84})}, {'top-1': .1}, tmp_path, tmp_path).read_text()
    assert '| `classify_soft_linformer` | classifier | Linformer | 1.0 | 9 | 1.0 | 0.840 |\n' in page
    assert '|  | *chance* |  |  |  |  | 0.10 |' in page
