import json
from itertools import product

import pandas as pd
import pytest
import torch

from benchmarks import limit_scores, limit_table
from benchmarks.limit import compare
from mmsoft import SOFT, SimADeiT
from mmsoft.utils import UsageError


def test_networks_with_and_without_a_limit():
    model = SOFT(dict(embed_dims=[16], num_heads=[1], depths=[1]), out_indices=0).eval()
    (none, *_), (four, changes, seconds, memory) = compare(model, torch.randn(1, 3, 160, 160), [4])
    assert (none, four) == (None, 4)
    assert 0 < changes[0] < 0.1 and seconds > 0 and not memory < 0


def test_networks_without_bottleneck_tokens():
    model = SimADeiT(dict(embed_dims=32, num_heads=2, depth=1), out_indices=0)
    with pytest.raises(UsageError, match='SimADeiT has no SOFTAttention'):
        list(compare(model, torch.randn(1, 3, 32, 32), [4]))


def test_the_table_of_maps_goes_on_where_it_was_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(limit_table, 'compare', lambda backbone, images, limits, runs: [(None, [0.0]), (4, [0.5])])
    monkeypatch.setattr(limit_table, 'LIMITS', (4,))
    (tmp_path / 'limit.md').write_text('<!-- benchmark limit_maps -->\n<!-- end -->')
    limit_table.main(['--size', '32', '--gammas', '0.3'], docs=tmp_path)
    table = pd.read_csv(tmp_path / 'data/limit.csv')
    assert table[['network', 'image', 'limit']].values.tolist() == [
        [network, image, 4] for network in ('SOFT-Norm-Tiny', 'SOFT-Tiny') for image in ('noise', 'grace_hopper')
    ]
    assert '| SOFT-Tiny | fresh, γ = 0.3 | 2 ' in ' '.join((tmp_path / 'limit.md').read_text().split())
    monkeypatch.setattr(limit_table, 'compare', None)
    limit_table.main(['--size', '32', '--gammas', '0.3'], docs=tmp_path)


def test_scenes_and_scores_with_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(limit_scores, 'SIDE', 160)
    monkeypatch.setattr(limit_scores, 'COUNTS', dict(train=2, val=1))
    limit_scores.draw(tmp_path)
    day, night = ({one['category_id'] <= 6 for one in of(tmp_path, image)} for image in (1, 2))
    assert (day, night) == ({True}, {False})
    rows = [
        dict(limit=limit or 0, trained=trained, ap=0.25 + seed / 4, ap50=0.5, seconds=1.0, memory=2e6)
        for limit, trained, seed in product((*limit_scores.LIMITS, limit_scores.WITHOUT), (0, 100), (0, 1))
    ]
    lines = limit_scores.scores_text(pd.DataFrame(rows)).splitlines()
    assert lines[2].split(' | ')[1].strip() == '0.375 (0.250–0.500)' and lines[-1].startswith('| without attention')


def of(root, image):
    return [one for one in json.loads((root / 'sky/train.json').read_text())['annotations'] if one['image_id'] == image]
