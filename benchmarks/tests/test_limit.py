import json
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks import limit
from benchmarks.limit import compare
from mmsoft import SOFT, SimADeiT
from mmsoft.utils import UsageError
from projects.trees import __main__ as trees


def test_networks_with_and_without_a_limit():
    model = SOFT(dict(embed_dims=[16], num_heads=[1], depths=[1]), out_indices=0).eval()
    none, four = compare(model, torch.randn(1, 3, 160, 160), [4])
    assert (none['limit'], none['map1'], four['limit']) == (0, 0, 4)
    assert 0 < four['map1'] < 0.1 and four['seconds'] > 0 and not four['bytes'] < 0


def test_the_first_network_is_not_charged_with_what_all_share(monkeypatch):
    """Memory that a process takes once, at its first pass, would look like what a limit saves."""
    model, seen = SOFT(dict(embed_dims=[16], num_heads=[1], depths=[1]), out_indices=0).eval(), []
    model.register_forward_hook(lambda *_: seen.append('pass'))
    monkeypatch.setattr(limit, 'with_peak', lambda run, device: (run(), len(seen)))
    first, second = compare(model, torch.randn(1, 3, 64, 64), [100], runs=0)
    assert (first['bytes'], second['bytes']) == (2, 3)


def test_time_is_that_of_all_threads(monkeypatch):
    model, seen = SOFT(dict(embed_dims=[16], num_heads=[1], depths=[1]), out_indices=0).eval(), set()
    model.register_forward_hook(lambda *_: seen.add(torch.get_num_threads()))
    monkeypatch.setattr(limit, 'with_peak', lambda run, device: (run(), 0))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    list(compare(model, torch.randn(1, 3, 64, 64), [100], runs=1))
    torch.set_num_threads(before)
    assert seen == {2}


def test_networks_without_bottleneck_tokens():
    model = SimADeiT(dict(embed_dims=32, num_heads=2, depth=1), out_indices=0)
    with pytest.raises(UsageError, match='SimADeiT has no SOFTAttention'):
        list(compare(model, torch.randn(1, 3, 32, 32), [4]))


def compared(*changes):
    others = dict(bytes=0, seconds=0.0)
    return lambda *args, **kwargs: [
        dict(limit=tokens, map1=one, map2=two, **others) for tokens, one, two in ((0, 0.0, 0.0), (100, *changes))
    ]


def test_rows_that_are_measured_again_replace_those_that_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(limit, 'subprocess', SimpleNamespace(run=lambda *args, **kwargs: None))  # draws figures
    command = ['maps', '--size', '32', '--gammas', '0.3', '--out-dir', str(tmp_path / 'work')]
    page, data = tmp_path / 'limit.md', tmp_path / 'data/limit.csv'
    page.write_text('<!-- benchmark limit_maps -->\n<!-- end -->')
    monkeypatch.setattr(limit, 'compare', compared(0.5, 0.25))
    for _ in range(2):
        limit.main(command, docs=tmp_path)
    assert not data.exists() and '| SOFT-Tiny' not in page.read_text()
    table = pd.read_csv(tmp_path / 'work/limit.csv')
    assert table[['network', 'image', 'limit']].values.tolist() == [
        [network, image, 100] for network in ('SOFT-Norm-Tiny', 'SOFT-Tiny') for image in ('noise', 'grace_hopper')
    ]
    assert table.commit.all()
    old = dict(size='32×32', network='SOFT-Tiny', weights='fresh, γ = 0.3', image='noise', limit=100, map1=9.0)
    data.parent.mkdir()
    pd.DataFrame([old, dict(old, size='64×64')]).to_csv(data, index=False)
    limit.main([*command, '--publish'], docs=tmp_path)
    assert '| SOFT-Tiny | fresh, γ = 0.3 | 2 | – | 50.0% (50 / 25) |' in ' '.join(page.read_text().split())
    assert pd.read_csv(data).map1.tolist() == [9.0, 0.5, 0.5, 0.5, 0.5]


def test_maps_that_are_not_finite_are_told(monkeypatch):
    monkeypatch.setattr(limit, 'compare', compared(0.5, float('nan')))
    network = dict(type='mmsoft.SOFT', arch=dict(embed_dims=[16], num_heads=[1], depths=[1]), out_indices=0)
    (row,) = limit.changes(network, None)
    others = dict.fromkeys((*limit.NETWORK, 'image'), '')
    assert 'inf% (50 / inf)' in limit.maps_text(pd.DataFrame([dict(others, **row)]))


def test_the_page_is_of_the_data():
    page = (limit.ROOT / 'docs/limit.md').read_text()
    for name, (_, text, file) in limit.TABLES.items():
        table = text(limit.read_table(limit.ROOT / 'docs/data' / file))
        assert f'<!-- benchmark limit_{name} -->\n{table}\n<!-- end -->' in page


def test_networks_are_what_they_are_called_and_images_are_rgb(tmp_path):
    found = []
    for name, weights, cfg in limit.networks([0.3], []):
        arch = dict(embed_dims=[16], num_heads=[1], depths=[1])
        attention = limit.build(dict(cfg, arch=arch, out_indices=0)).stages[0].blocks[0].attn
        found.append((name, weights, attention.norm, attention.bottleneck.norm.weight[0].item()))
    gamma = pytest.approx(0.3)
    assert found == [('SOFT-Norm-Tiny', 'fresh, γ = 0.3', True, gamma), ('SOFT-Tiny', 'fresh, γ = 0.3', False, gamma)]
    cv2.imwrite(str(tmp_path / 'red.png'), np.full((8, 8, 3), (0, 0, 255), np.uint8))
    red, green, blue = limit.read(str(tmp_path / 'red.png'), (4, 8))[0, :, 0, 0].tolist()
    assert (red, green, blue) == pytest.approx(((255 - 123.675) / 58.395, -116.28 / 57.12, -103.53 / 57.375), rel=1e-5)


def test_a_training_begins_with_the_evidence_of_its_seed_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(limit.Runner, 'from_cfg', lambda cfg: SimpleNamespace(cfg=cfg, train=lambda: None))
    cfg = limit.train(2, 100, 'evidence', tmp_path).cfg
    assert (cfg.load_from, cfg.resume) == ('evidence/architecture_soft_norm_seed2/iter_450.pth', False)
    assert cfg.model.backbone.attention.bottleneck_limit == 100 and cfg.randomness.seed == 2
    work = tmp_path / 'soft_norm_none_seed1'
    work.mkdir()
    (work / 'last_checkpoint').touch()
    cfg = limit.train(1, 0, 'evidence', tmp_path).cfg
    assert (cfg.load_from, cfg.resume, cfg.model.backbone.attention.bottleneck_limit) == (None, True, None)


def test_scores_are_those_with_each_limit_and_without_attention(monkeypatch):
    model = torch.nn.Sequential()
    model.backbone = SOFT(dict(embed_dims=[16], num_heads=[1], depths=[1]), out_indices=0)
    attention, clock = model.backbone.stages[0].blocks[0].attn, [0.0]

    def test():
        clock[0] += 8
        with torch.no_grad():
            attends = bool(attention.attended(torch.ones(1)))
        return {'coco/bbox_mAP': (attention.limit or 0) + attends / 2, 'coco/bbox_mAP_50': -1.0}

    monkeypatch.setattr(limit.time, 'process_time', lambda: clock[0])
    monkeypatch.setattr(limit, 'with_peak', lambda run: (run(), 7))
    rows = list(limit.scores(SimpleNamespace(model=model, test=test, test_dataloader=[1, 2])))
    common = dict(ap50=-1.0, seconds=4.0, memory=7)
    expected = [dict(limit=count, ap=count + 0.5, **common) for count in limit.LIMITS]
    assert rows == [*expected, dict(limit=limit.WITHOUT, ap=100.0, **common)]


def test_scenes_and_scores_with_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(limit, 'SIDE', 160)
    monkeypatch.setattr(limit, 'COUNTS', dict(train=2, val=1))
    limit.draw(tmp_path)
    day, night = ({one['category_id'] <= 6 for one in of(tmp_path, image)} for image in (1, 2))
    assert (day, night) == ({True}, {False})
    rows = [
        dict(limit=tokens, trained=trained, ap=0.25 + seed / 4, ap50=0.5, seconds=1.0, memory=2e6)
        for tokens, trained, seed in product((*limit.LIMITS, limit.WITHOUT), (0, 100), (0, 1))
    ]
    lines = limit.scores_text(pd.DataFrame(rows)).splitlines()
    assert lines[2].split(' | ')[1].strip() == '0.375 (0.250–0.500)' and lines[-1].startswith('| without attention')


def of(root, image):
    return [one for one in json.loads((root / 'sky/train.json').read_text())['annotations'] if one['image_id'] == image]


def test_a_photograph_of_trees_with_limits(tmp_path, monkeypatch, capsys):
    """Three seeds of a network, each with all limits, without the gain and without attention; scores are made up."""
    asked = []

    def test(config, checkpoint, work_dir, cfg_options, without_attention, tta):
        count, gain = (cfg_options[f'model.backbone.attention.bottleneck_{name}'] for name in ('limit', 'gain'))
        asked.append((Path(config).name, Path(checkpoint).name, count, gain, without_attention))
        assert cfg_options['test_dataloader.dataset.ann_file'] == 'validation.json' and not tta
        return {'coco/bbox_mAP_50': 0.4 if gain else 0.1, 'coco/bbox_mAP': 0.01}

    monkeypatch.setattr(trees, 'test', test)
    monkeypatch.setattr(limit, 'latest_checkpoint', lambda folder: folder)
    monkeypatch.setattr(limit, 'commit', lambda: 'abc')
    limit.main(['trees', 'soft_norm_mix', '--out-dir', str(tmp_path)])
    limits = [None, 400, 196, 100, 49, 16]
    cases = [*((count, True, None) for count in limits), (100, False, None), (None, True, [])]
    names = [('soft_norm_mix.py', f'soft_norm_mix_{seed}') for seed in range(3)]
    assert asked == [(*name, *case) for name, case in product(names, cases)]
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 2 + len(cases) and '0.400, 0.400, 0.400' in table[2]
    assert '100, without the matched gain' in table[-2] and '0.100, 0.100, 0.100' in table[-2]
    assert 'without attention' in table[-1]


def test_gradients_with_a_limit_are_others(tmp_path, monkeypatch):
    """The gain is a constant to them: maps change less. Without beginning to act, a limit changes neither."""
    nano = limit.CONTENDERS['soft_norm_nano']
    arch = dict(embed_dims=[16], num_heads=[1], depths=[1])
    backbone = dict(type='mmsoft.SOFT', arch=arch, out_indices=0)
    monkeypatch.setitem(limit.CONTENDERS, 'soft_norm_nano', nano._replace(backbone=backbone))
    monkeypatch.setattr(limit, 'GAMMAS', (0.6,))
    monkeypatch.setattr(
        limit, 'read', lambda image, hw: torch.linspace(0, len(image), 3 * 416**2).sin().view(1, 3, 416, 416)
    )
    limit.main(['gradients', '--out-dir', str(tmp_path)])
    table = pd.read_csv(tmp_path / 'limit_gradients.csv')
    assert table[['network', 'image']].values.tolist() == [
        [network, image] for network in ('SOFT-Norm', 'SOFT') for image in ('noise', 'grace_hopper')
    ]
    assert (table['maps'] > 0).all() and (table['maps'] < table.gradient).all()
    monkeypatch.setattr(limit, 'read', lambda image, hw: torch.ones(1, 3, 64, 64))
    limit.main(['gradients', '--out-dir', str(tmp_path)])
    table = pd.read_csv(tmp_path / 'limit_gradients.csv')
    assert not table[['maps', 'gradient']].values.any()


def test_changes_of_gradients_are_parts_of_them(tmp_path, monkeypatch):
    network, limits = torch.nn.Module(), []
    network.forward = lambda x: (5 * x, (1 + limits[-1] / 50) * x)
    monkeypatch.setattr(limit, 'build', lambda cfg: network)
    monkeypatch.setattr(limit, 'set_limit', lambda _, tokens: limits.append(tokens))
    monkeypatch.setattr(limit, 'read', lambda image, hw: 7 * torch.ones(1, 3, 4, 4))
    monkeypatch.setattr(torch, 'randn', lambda shape, generator: torch.ones(shape))
    limit.main(['gradients', '--out-dir', str(tmp_path)])
    table = pd.read_csv(tmp_path / 'limit_gradients.csv')
    assert set(table['maps']) == {2} and table.gradient.values == pytest.approx(1 / 3) and limits == [0, 100] * 16
