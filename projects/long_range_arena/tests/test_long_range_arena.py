"""The generators follow the published rules; padding changes nothing; short lists are learned."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import DefaultSampler
from mmengine.registry import init_default_scope

from mmsoft.attention import Attention
from mmsoft.registry import MODELS
from projects.long_range_arena import (
    EqualLengths,
    ListOps,
    PadSequences,
    Pathfinder,
    SequenceClassifier,
    __main__,
    pathfinder,
)
from projects.long_range_arena.listops import NUMBER, SYMBOLS
from projects.long_range_arena.pathfinder import DASHES, draw_curves, margin, pixels


def evaluate(symbols):
    """Of a list, by Python's own parser."""
    text = ' '.join(symbols)
    for name, function in (('MIN', 'min'), ('MAX', 'max'), ('MED', 'med'), ('SM', 'sm')):
        text = text.replace(f'[{name}', f'{function}((')
    text = ','.join(text.split()).replace('((,', '((').replace(',]', ',))').replace(']', '))')
    return eval(text, dict(min=min, max=max, med=lambda v: int(np.median(v)), sm=lambda v: sum(v) % 10))


def test_lists_have_the_published_properties(tmp_path):
    data = ListOps(count=200, split='test', folder=tmp_path)
    lists = [[SYMBOLS[token - 1] for token in one['tokens']] for one in data]
    lengths = [len(one) for one in lists]
    assert min(lengths) > 500 and max(lengths) < 2000
    assert np.mean(lengths) == pytest.approx(1064, abs=100)
    for one, item in zip(lists, data):
        assert evaluate(one) == item['gt_label']
    shares = Counter(item['gt_label'] for item in data)
    assert shares[0] / 200 == pytest.approx(0.171, abs=0.1) and shares[9] / 200 == pytest.approx(0.173, abs=0.1)


def test_data_are_kept_and_splits_differ(tmp_path):
    options = dict(count=5, lengths=(10, 64), folder=tmp_path)
    one, again, other = (ListOps(split=split, **options) for split in ('train', 'train', 'val'))
    assert all((a['tokens'] == b['tokens']).all() for a, b in zip(one, again))
    assert len(list(tmp_path.iterdir())) == 2
    assert any(len(a['tokens']) != len(b['tokens']) for a, b in zip(one, other))


def test_lists_are_as_deep_as_asked_for(tmp_path):
    data = ListOps(count=100, lengths=(6, 20), depth=3, split='train', folder=tmp_path)
    lists = [[SYMBOLS[token - 1] for token in one['tokens']] for one in data]
    assert all(6 < len(one) < 20 and evaluate(one) == item['gt_label'] for one, item in zip(lists, data))
    levels = [max(np.cumsum([one.startswith('[') - (one == ']') for one in symbols])) for symbols in lists]
    assert Counter(levels).keys() == {1, 2}


def test_lists_are_as_wide_as_asked_for(tmp_path):
    widths, open_lists = Counter(), []
    for one in ListOps(count=100, lengths=(6, 20), arguments=3, split='train', folder=tmp_path):
        for symbol in (SYMBOLS[token - 1] for token in one['tokens']):
            if symbol == ']':
                widths[open_lists.pop()] += 1
                continue
            if open_lists:
                open_lists[-1] += 1
            if symbol.startswith('['):
                open_lists.append(0)
    assert widths.keys() == {2, 3} and not open_lists


def test_curves_do_not_touch():
    rng = random.Random(0)
    drawn = [curves for curves in (draw_curves(rng) for _ in range(300)) if curves][:5]
    assert len(drawn) == 5
    for curves in drawn:
        taken = [np.logical_or.reduce([margin(dash) for dash in curve.dashes]) for curve in curves]
        lines = [np.logical_or.reduce([pixels(dash)[0] for dash in curve.dashes]) for curve in curves]
        assert not (taken[0] & lines[1]).any()
        assert all(len(curve.dashes) == DASHES for curve in curves)


@pytest.mark.parametrize('connected', [True, False])
def test_discs_are_the_ends_of_one_curve_if_they_are_connected(connected, monkeypatch):
    drawn, draw = [], pathfinder.draw_curves
    monkeypatch.setattr(pathfinder, 'draw_curves', lambda rng: drawn.append(draw(rng)) or drawn[-1])
    for lines in ('TARGET', 'DISTRACTOR'):  # of which nothing is seen beside the discs
        monkeypatch.setattr(pathfinder, lines, 0.0)
    for seed in range(3):
        image = pathfinder.draw_image(random.Random(seed), connected)
        ends = [(curve.dashes[0][0], curve.dashes[-1][1]) for curve in drawn[-1]]
        discs = [sum(image[tuple(np.round(end).astype(int))] > 0 for end in both) for both in ends]
        assert sorted(discs) == ([0, 2] if connected else [1, 1])


def test_images_are_balanced(tmp_path):
    data = Pathfinder(count=16, split='test', folder=tmp_path)
    assert all(one['tokens'].shape == (1024,) for one in data)
    assert 0.1 < np.mean([one['gt_label'] for one in data]) < 0.9


@pytest.mark.parametrize('name', __main__.ATTENTIONS)
def test_padding_changes_nothing(name):
    """Also where whole windows of bottleneck tokens are padding."""
    init_default_scope('mmpretrain')
    torch.manual_seed(0)
    model = SequenceClassifier(__main__.ATTENTIONS[name], 10, length=64, vocabulary=32).eval()
    tokens = torch.randint(1, 16, (2, 64))
    alone = [model(tokens[:1, :9], [9]), model(tokens[1:], [64])]
    together = model(torch.where(torch.arange(64) < torch.tensor([[9], [64]]), tokens, 0), [9, 64])
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)


def test_every_attention_of_the_package_is_trained():
    attentions = {
        key for key, one in MODELS.module_dict.items() if issubclass(one, Attention) and not one.for_class_token
    }
    of_package = {key for key in attentions if MODELS.get(key).__module__.startswith('mmsoft.')}
    assert of_package <= {one['type'] for one in __main__.ATTENTIONS.values()} <= attentions | {'NoAttention'}


def test_batches_of_equal_lengths_have_every_sequence_once(tmp_path):
    data = ListOps(count=60, lengths=(10, 20), split='train', folder=tmp_path)
    batches = EqualLengths(DefaultSampler(data, shuffle=True, seed=0), 8)
    drawn = list(batches)
    assert sorted(index for batch in drawn for index in batch) == list(range(60)) and len(drawn) == len(batches)
    assert all(len({len(data[index]['tokens']) for index in batch}) == 1 for batch in drawn)
    assert max(map(len, drawn)) == 8


def test_samples_of_equal_lengths_have_every_sequence_once(tmp_path):
    options = dict(count=60, lengths=(10, 20), split='train', folder=tmp_path)
    groups = [(one['tokens'], one['gt_label']) for one in ListOps(**options, together=8)]
    found = [(*row.tolist(), label) for tokens, labels in groups for row, label in zip(tokens, labels.tolist())]
    assert sorted(found) == sorted((*one['tokens'].tolist(), one['gt_label']) for one in ListOps(**options))
    assert max(len(labels) for _, labels in groups) == 8 and len(groups) < 20
    batch = PadSequences()(dict(tokens=[groups[0][0], groups[-1][0]], gt_label=[groups[0][1], groups[-1][1]]), True)
    assert batch['inputs'].shape == (len(batch['lengths']), 19) and len(batch['data_samples']) == len(batch['lengths'])


def test_the_command_trains_once_and_prints_a_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = {'train_cfg.max_iters': 2, 'train_cfg.val_interval': 2, 'train_dataloader.batch_size': 4}
    short.update({f'{kind}_dataloader.dataset.count': 20 for kind in ('train', 'val', 'test')})
    score = __main__.run('none', 1, short)
    assert 0 <= score <= 100
    monkeypatch.setattr(__main__, 'train', None)
    assert __main__.run('none', 1, short) == score
    rows = __main__.table(dict(softmax=[40.0, 42.0], none=[score])).splitlines()
    assert [cell.strip() for cell in rows[2].split('|')[1:-1]] == ['`softmax`', '2', '41.0 ± 1.4', '37.10']


def test_the_checkpoint_of_the_best_validation_of_each_attention_is_tested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []

    def train(config, folder, resume, cfg_options):
        asked.append((resume, cfg_options['model.attention'], cfg_options['randomness.seed']))
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, 'iter_4000.pth').touch()
        # Two are left by a training that was killed before it removed one; the newer is not always the better.
        for iteration, score in ((3000, 50.0), (900, 40.0), (3500, 45.0)):
            content = dict(state_dict={}, message_hub=dict(runtime_info=dict(best_score=score)))
            torch.save(content, Path(folder, f'best_accuracy_top1_iter_{iteration}.pth'))

    def test(config, checkpoint, folder, cfg_options):
        assert (cfg_options['model.attention'], cfg_options['randomness.seed']) == asked[-1][1:]
        return {'accuracy/top1': 1.0 if Path(checkpoint) == Path(folder, 'best_accuracy_top1_iter_3000.pth') else 0.0}

    monkeypatch.setattr(__main__, 'train', train)
    monkeypatch.setattr(__main__, 'test', test)
    assert [__main__.run(name, seed) for name, seed in (('sima', 1), ('soft', 2))] == [1.0, 1.0]
    soft = dict(type='SOFTAttention', norm=False, sampling='avg_pool', initial_gamma=0.3, _delete_=True)
    assert asked == [('auto', dict(type='SimAAttention', _delete_=True), 1), ('auto', soft, 2)]


@pytest.mark.parametrize('name', ['listops', 'listops_small', 'pathfinder'])
def test_each_split_is_what_it_is_called(name):
    cfg = Config.fromfile(__main__.HERE / f'configs/{name}.py')
    assert [cfg[f'{split}_dataloader'].dataset.split for split in ('train', 'val', 'test')] == ['train', 'val', 'test']


@pytest.mark.slow
def test_short_lists_are_learned():
    """The class of these is their first digit, wherever in the list the model looks."""
    init_default_scope('mmpretrain')
    torch.manual_seed(0)
    model = SequenceClassifier(dict(type='SOFTAttention', sampling='avg_pool', initial_gamma=0.3), 10, 16, 32)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(150):
        tokens = torch.randint(1, 11, (32, 16))
        batch = model.data_preprocessor(
            dict(tokens=tokens.numpy(), gt_label=(tokens[:, 0] - 1).tolist()), training=True
        )
        loss = model(**batch, mode='loss')['loss']
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.5
    assert isinstance(model.data_preprocessor, PadSequences) and NUMBER['0'] == 1
