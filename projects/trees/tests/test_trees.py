"""Tiles hold what is in them, nothing of the tested photographs is trained on, and the whole command works."""

import json

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, PARAM_SCHEDULERS, init_default_scope
from torch import nn
from trainings import forget_runs

from mmsoft.attention import SimAAttention, Site
from mmsoft.attention.measure import without_attention
from projects.trees import __main__ as tool
from projects.trees.__main__ import CONFIGS, NAMES, run, table
from projects.trees.tiles import TESTED, TRAINING, Photograph, make_data, starts, tiles

OBJECT = '<object><name>{}</name><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>'


@pytest.mark.parametrize('length, size, step', [(100, 40, 20), (95, 40, 20), (40, 40, 20), (30, 40, 20), (81, 40, 40)])
def test_tiles_cover_a_side_and_stay_inside(length, size, step):
    begin = starts(length, size, step)
    assert set(range(length)) == {place for start in begin for place in range(start, min(start + size, length))}
    assert begin == sorted(set(begin)) and begin[-1] + min(size, length) == length


def test_a_tile_has_the_boxes_of_which_enough_is_inside_cropped():
    """Against pixels that are counted."""
    rng = np.random.default_rng(0)
    corners = rng.integers(0, (90, 70), (40, 2))
    boxes = np.hstack([corners, np.minimum(corners + rng.integers(4, 30, (40, 2)), (100, 80))])
    painted = [np.zeros((80, 100), bool) for _ in boxes]
    for mask, (left, top, right, bottom) in zip(painted, boxes):
        mask[top:bottom, left:right] = True
    places = np.arange(8000).reshape(80, 100)
    found = list(tiles(Photograph(places[..., None], boxes.astype(float)), size=48, step=30, minimum=0.4))
    assert len(found) == len(starts(100, 48, 30)) * len(starts(80, 48, 30))
    for image, inside in found:
        top, left = divmod(int(image.min()), 100)
        assert image.shape == (48, 48, 1)
        expected = []
        for mask in painted:
            seen = mask[top : top + 48, left : left + 48]
            if seen.sum() >= 0.4 * mask.sum():
                (rows,), (columns,) = np.nonzero(seen.any(1)), np.nonzero(seen.any(0))
                expected.append([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
        assert inside.tolist() == expected


@pytest.fixture
def source(tmp_path):
    """Photographs by the names of the package's, each of one grey, with some boxes."""
    folder = tmp_path / 'photographs'
    folder.mkdir()
    for grey, name in enumerate([TRAINING, *TESTED.values()], start=1):
        boxes = [(place, place, place + 40, place + 30) for place in (10, 100, 250 + grey)]
        cv2.imwrite(str(folder / f'{name}.png'), np.full((420 if grey == 1 else 320, 500, 3), 40 * grey, np.uint8))
        text = ''.join(OBJECT.format('Tree' if grey % 2 else 'Dead', *box) for box in boxes)
        (folder / f'{name}.xml').write_text(f'<annotation>{text}</annotation>')
    return folder


def test_nothing_of_the_tested_photographs_is_trained_on(source, tmp_path):
    make_data(source, tmp_path / 'data')
    documents = {split: json.loads((tmp_path / f'data/{split}.json').read_text()) for split in ('train', *TESTED)}
    folders = dict.fromkeys(documents, 'photographs') | dict(train='tiles')
    for number, (split, document) in enumerate(documents.items(), start=1):
        assert document['images'] and len({image['id'] for image in document['images']}) == len(document['images'])
        for image in document['images']:
            pixels = cv2.imread(str(tmp_path / 'data' / folders[split] / image['file_name']))
            assert pixels.shape == (image['height'], image['width'], 3)
            assert (pixels == 40 * number).all(), 'of another photograph'
        if split != 'train':
            assert [one['bbox'] for one in document['annotations']] == [
                [place, place, 40, 30] for place in (10, 100, 250 + number)
            ]
    assert len(documents['train']['images']) == 4 and len(documents['train']['annotations']) > 3


@pytest.fixture(scope='module')
def recipe():
    return Config.fromfile(CONFIGS / 'soft_norm.py')


def test_the_recipe_is_that_of_the_page(recipe):
    steps = ['RandomResize', 'RandomCrop', 'RandomFlip', 'mmpretrain.GaussianBlur', 'mmpretrain.ColorJitter']
    assert [step.type for step in recipe.train_pipeline if step.type in steps] == steps
    (average,) = (hook for hook in recipe.custom_hooks if hook.type == 'EMAHook')
    assert average.update_buffers and recipe.model.test_cfg.max_per_img == 1000
    assert [len(views) for views in recipe.tta_pipeline[1].transforms[:2]] == [3, 4]
    assert recipe.train_dataloader.dataset.ann_file == 'train.json'


_PVT = ('mmsoft.MixSOFT', 'pvt_v2')
# As the page has them: backbone, patch embeddings, attention, part of the images that do without it in training.
NETWORKS = dict(
    soft_norm=('mmsoft.SOFT', None, 'StochasticSOFTAttention', 0.75),
    soft_norm_mix=('mmsoft.MixSOFT', None, 'StochasticSOFTAttention', 0.75),
    soft_norm_pvt=(*_PVT, 'StochasticSOFTAttention', 0.75),
    sima_pvt=(*_PVT, 'SimAAttention', None),
    sima_half=(*_PVT, 'StochasticSimAAttention', 0.5),
    sima_rare=(*_PVT, 'StochasticSimAAttention', 0.75),
    sima=('mmsoft.SimAXCiT', None, 'SimAAttention', None),
    control=('mmsoft.SOFT', None, 'WithoutAttention', None),
    control_pvt=(*_PVT, 'WithoutAttention', None),
    pvt_v2=('PyramidVisionTransformerV2', None, None, None),
    resnet_18=('ResNet', None, None, None),
)


@pytest.mark.parametrize('name', NAMES)
def test_networks_are_of_one_size_and_trained_by_one_recipe(name, recipe):
    cfg, iterations = Config.fromfile(CONFIGS / f'{name}.py'), 6000 if name.endswith('_6k') else 3000
    for key in ('train_dataloader', 'test_dataloader', 'custom_hooks', 'tta_pipeline', 'tta_model'):
        assert cfg[key] == recipe[key], key
    assert (
        cfg.optim_wrapper.optimizer == recipe.optim_wrapper.optimizer
        and cfg.param_scheduler[0] == recipe.param_scheduler[0]
    )
    assert cfg.train_cfg.max_iters == cfg.train_cfg.val_interval == cfg.param_scheduler[1].T_max == iterations
    backbone, attention = cfg.model.backbone, cfg.model.backbone.get('attention', {})
    found = backbone.type, backbone.get('embedding'), attention.get('type'), attention.get('drop_rate')
    assert found == NETWORKS[name.removesuffix('_6k')]
    init_default_scope('mmdet')
    model = MODELS.build(cfg.model).eval()
    with torch.no_grad():
        levels = model.bbox_head(model.extract_feat(torch.zeros(1, 3, 128, 128)))[0]
    assert [level.shape[-1] for level in levels] == [16, 8, 4]
    assert 1.4e6 < sum(parameter.numel() for parameter in model.parameters()) < 1.7e6


@pytest.mark.parametrize('name', NAMES)
def test_all_layers_learn_and_no_norm_depends_on_the_size_of_the_image(name):
    """mmdet's ResNet keeps its BatchNorm as it was, and GFL's GroupNorm sees crops in training and not in tests."""
    init_default_scope('mmdet')
    model = MODELS.build(Config.fromfile(CONFIGS / f'{name}.py').model).train()
    assert all(module.training for module in model.modules())
    assert not [module for module in model.modules() if isinstance(module, (nn.GroupNorm, nn.InstanceNorm2d))]


def test_position_embeddings_do_not_learn_and_the_backbone_has_half_the_rate():
    init_default_scope('mmdet')
    cfg = Config.fromfile(CONFIGS / 'soft_norm.py')
    model = MODELS.build(cfg.model)
    optim = build_optim_wrapper(model, cfg.optim_wrapper)
    schedulers = [PARAM_SCHEDULERS.build(dict(one, optimizer=optim)) for one in cfg.param_scheduler]
    for _ in range(500):
        optim.optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    rate = {id(group['params'][0]): group['lr'] for group in optim.optimizer.param_groups}
    rates = {name: rate[id(parameter)] for name, parameter in model.named_parameters()}
    whole = rates['bbox_head.gfl_cls.weight']
    embeddings = {name for name in rates if 'pos_embed' in name}
    assert len(embeddings) == 3 and whole > 0
    for name, rate in rates.items():
        assert rate == (0 if name in embeddings else whole / 2 if name.startswith('backbone.') else whole), name


def test_sima_attends_on_photographs_as_on_crops():
    """Four times the same tokens give the same, and as many as a crop has what SimA gives as published."""
    init_default_scope('mmdet')
    cfg = Config.fromfile(CONFIGS / 'sima.py')
    (crop,) = (one.crop_size for one in cfg.train_pipeline if one.type == 'RandomCrop')
    rows, columns = (side // cfg.arch.patch_size for side in crop)
    backbone = MODELS.build(cfg.model.backbone).eval()
    tokens = torch.randn(1, rows * columns, cfg.arch.embed_dims)
    attn = backbone.blocks[0].attn
    published = SimAAttention(Site(cfg.arch.embed_dims, cfg.arch.num_heads, (28, 28), 4)).eval()
    published.load_state_dict(attn.state_dict())
    with torch.no_grad():
        once, repeated = attn(tokens, (rows, columns)), attn(tokens.repeat(1, 4, 1), (2 * rows, 2 * columns))
        torch.testing.assert_close(published(tokens, (rows, columns)), once)
    torch.testing.assert_close(repeated, once.repeat(1, 4, 1))


def test_the_control_is_the_network_with_its_attention_taken_away():
    init_default_scope('mmdet')
    network, control = (
        MODELS.build(Config.fromfile(CONFIGS / f'{name}.py').model.backbone).eval() for name in ('soft_norm', 'control')
    )
    missing, unused = control.load_state_dict(network.state_dict(), strict=False)
    assert not missing and all('query' in name or 'bottleneck' in name for name in unused)
    image = torch.randn(1, 3, 96, 64)
    with torch.no_grad(), without_attention(network):
        for one, other in zip(control(image), network(image)):
            torch.testing.assert_close(one, other)


@pytest.mark.slow
def test_the_command_trains_tests_and_draws_and_does_nothing_twice(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    forget_runs()
    make_data(source, 'data/trees')
    short = {'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1, 'train_dataloader.batch_size': 1}
    short.update({f'{kind}_dataloader.num_workers': 0 for kind in ('train', 'val', 'test')})
    short.update({f'{kind}_dataloader.persistent_workers': False for kind in ('train', 'val', 'test')})
    short['model.bbox_head.feat_channels'] = 32  # the tested network has it, too, or the checkpoint would not fit
    scores = run('control', 0, short)
    assert {*TESTED, *(f'{one} without attention' for one in TESTED)} <= set(scores)
    folder = tmp_path / 'work_dirs/trees/control_0'
    assert len({image.name for image in folder.rglob('drawn/**/*.png')}) == len(TESTED)
    before = sorted(folder.rglob('*'))
    assert run('control', 0, short) == scores and sorted(folder.rglob('*')) == before


@pytest.mark.parametrize('name', ['soft_norm', 'pvt_v2'])
def test_the_last_checkpoint_is_tested_on_each_photograph_in_all_views_and_without_attention(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    trained = []
    monkeypatch.setattr(tool, 'train', lambda config, folder, **options: trained.append(options))
    monkeypatch.setattr(tool, 'latest_checkpoint', lambda folder: folder / 'last.pth')

    def test(config, checkpoint, folder, cfg_options, tta, show_dir=None, without_attention=None):
        assert checkpoint.endswith(f'{name}_2/last.pth') and cfg_options['randomness.seed'] == 2 and tta
        files = [cfg_options[key] for key in ('test_dataloader.dataset.ann_file', 'test_evaluator.ann_file')]
        assert files[1] == f'data/trees/{files[0]}' and without_attention in (None, [])
        score = 0.1 * [*TESTED].index(files[0][:-5]) + (0.5 if without_attention is None else 0.2)
        return {'coco/bbox_mAP_50': score, 'coco/bbox_mAP': score / 10}

    monkeypatch.setattr(tool, 'test', test)
    expected = {}
    for number, photograph in enumerate(TESTED):
        expected[photograph], expected[f'{photograph} AP'] = 0.1 * number + 0.5, (0.1 * number + 0.5) / 10
        if name == 'soft_norm':
            expected[f'{photograph} without attention'] = 0.1 * number + 0.2
    assert run(name, 2) == pytest.approx(expected) and trained == [
        dict(resume='auto', cfg_options={'randomness.seed': 2})
    ]


def test_the_table_has_means_and_spreads():
    one = {'validation': 0.4, 'validation AP': 0.2, 'florida': 0.3, 'california': 0.2}
    controlled = {f'{name} without attention': score / 2 for name, score in one.items()}
    rows = table(dict(a=[one, dict(one, validation=0.6)], b=[{**one, **controlled}])).splitlines()
    assert [cell.strip() for cell in rows[2].split('|')[1:-1]] == [
        'a', '2', '0.500 ± 0.141', '–', '0.250 ± 0.000', '–', '0.200 ± 0.000',
    ]  # fmt: skip
    assert [cell.strip() for cell in rows[3].split('|')[1:-1]] == [
        'b', '1', '0.400', '0.200', '0.250', '0.125', '0.200',
    ]  # fmt: skip
