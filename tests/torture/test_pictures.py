"""Pictures as they come: what can be predicted is, what cannot is named and skipped."""

import json
from pathlib import Path

import pytest
from odd_pictures import fill

from mmsoft.apis import predict
from mmsoft.apis.tasks import Classification
from mmsoft.utils import on_one_line

NAMES = ('retinanet_soft_nano_shapes', 'upernet_soft_small_160k', 'soft_tiny_in1k')


@pytest.mark.filterwarnings('ignore')
@pytest.mark.rounds(3, 12)
def test_odd_pictures(trial, tiny_model, tmp_path, capfd):
    """A folder of 37 images of every kind is predicted: odd sizes, modes, names and links, bombs, damage"""
    name = NAMES[trial.round % 3]
    good, bad = fill(tmp_path / 'in', trial.random)
    broken = predict(
        *tiny_model(name, max_per_img=100),
        str(tmp_path / 'in'),
        str(tmp_path / 'out'),
        'cpu',
        int(trial.random.integers(1, 5)),
        save_pred=True,
    )
    said = capfd.readouterr().err
    trial.note(config=name, predicted=len(good), skipped=len(broken))
    assert not good & set(broken), said
    assert bad <= set(broken)
    drawn = {path.relative_to(tmp_path / 'out/vis') for path in (tmp_path / 'out/vis').rglob('*') if path.is_file()}
    assert {path.relative_to(tmp_path / 'in') for path in good} <= drawn
    assert not {path.relative_to(tmp_path / 'in') for path in broken} & drawn
    skipped = [line for line in said.splitlines() if ' is skipped, ' in line]
    assert len(skipped) == len(broken)
    for path, line in zip(broken, skipped):
        assert line.startswith(f'{on_one_line(str(path))} is skipped, ')
    assert not Path('ran').exists()
    for path in (tmp_path / 'out/preds').glob('*.json'):
        json.loads(path.read_text())


def test_ten_thousand_pictures_are_listed_at_once(tiny_model, tmp_path, monkeypatch, capfd):
    """A folder of 10,000 files, of which the third picture is interrupted: what was done is there"""
    data = b'P5 1 1 255\n\x00'
    for folder in range(10):
        (tmp_path / f'in/{folder}').mkdir(parents=True)
        for number in range(1000):
            (tmp_path / f'in/{folder}/{number:03}.pgm').write_bytes(data)
    drawn = []

    def draw(self, image, sample, path):
        drawn.append(path)
        if len(drawn) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Classification, 'draw', draw)
    with pytest.raises(KeyboardInterrupt):
        predict(*tiny_model('soft_tiny_in1k'), str(tmp_path / 'in'), str(tmp_path / 'out'), 'cpu', save_pred=True)
    assert len(list((tmp_path / 'out/preds').rglob('*.json'))) == 2
