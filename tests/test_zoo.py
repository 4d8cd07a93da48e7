"""The published classifiers against the figures of the metafiles, and the command."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from mmengine.registry import MODELS, init_default_scope

from benchmarks import zoo
from benchmarks.flops import count_flops
from benchmarks.zoo import Size, load_sizes, main, measure, page_texts, publish, published_models, score_rows
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config

ROOT = Path(__file__).parents[1]
PUBLISHED = published_models(ROOT / 'model-index.yml')
SIZES = pd.read_csv(ROOT / 'docs/data/zoo.csv', dtype=str, index_col='config')
# The norm changes neither parameters nor, by more than a row sum, FLOPs.
COUNTED = [
    name
    for name, model in PUBLISHED.items()
    if 'FLOPs' in model and name.endswith('_in1k') and (name.startswith('sima') or '_plain' in name)
]
PAGE = (ROOT / 'docs/flops.md').read_text()


def rows(begin):
    """Cells of the page's table that begins so, by the first cell of their row."""
    lines = PAGE[PAGE.index(begin) :].split('\n\n')[0].splitlines()
    return {first: cells for first, *cells in (line.strip('| ').split(' | ') for line in lines)}


SIZES_AT_224 = rows('| GFLOPs | tiny |')
WITH_INVERSE = dict(zip(SIZES_AT_224['GFLOPs'], SIZES_AT_224['with it']))


# One of each kind; to trace the many equal blocks of the others takes seconds.
QUICK = ('soft_tiny_plain_in1k', 'sima_xcit_small_12_p16_in1k', 'sima_deit_small_in1k', 'sima_cvt_13_in1k')


@pytest.mark.parametrize(
    'name', [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in COUNTED]
)
def test_published_figures(name):
    published, size = PUBLISHED[name], measure(load_config(str(ROOT / f'configs/{name}.py')))
    assert [f'{size.parameters / 1e6:.2f}', f'{size.flops / 1e9:.4g}'] == [*SIZES.loc[name, ['parameters', 'flops']]]
    assert size.flops == pytest.approx(published['FLOPs'], rel=0.08)
    if size.inverse:
        assert f'{(size.flops + size.inverse) / 1e9:.2f}' == WITH_INVERSE[name.split('_')[1]]
    network = published.get('Published Network')
    if network:
        assert size.parameters == pytest.approx(network['Parameters'], abs=1e4)
        # Products taken from the right cost less than in the published order, by 3 % at most.
        assert size.flops == pytest.approx(network['FLOPs'], rel=0.03)
        assert size.flops + size.inverse == pytest.approx(network['FLOPs With Inverse'], rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    'name',
    [
        'retinanet_soft_tiny_1x',
        'cascade_mask_rcnn_soft_small_3x',
        'sparse_rcnn_soft_small_3x',
        'upernet_soft_small_160k',
    ],
)
def test_detectors_are_as_large_as_the_page_says(name):
    size = measure(load_config(str(ROOT / f'configs/{name}.py')))
    assert [f'{size.parameters / 1e6:.2f}', f'{size.flops / 1e9:.4g}'] == [*SIZES.loc[name, ['parameters', 'flops']]]


# By hand from the construction of each network: millions of parameters and GFLOPs, without SOFT's inverse.
DERIVED = {
    'soft_tiny_softmax_in1k': (13.303, 3.54),
    'soft_tiny_linformer_in1k': (13.416, 1.80),
    'soft_tiny_performer_in1k': (13.303, 2.15),
    'soft_tiny_nystromformer_in1k': (13.303, 2.12),
    'soft_tiny_gaussian_in1k': (12.957, 3.44),
    'soft_tiny_gaussian_softmax_in1k': (12.957, 3.44),
    'soft_tiny_patches_in1k': (11.978, 1.66),
    'soft_tiny_bottleneck_36_in1k': (13.069, 1.91),
    'soft_tiny_bottleneck_49_in1k': (13.069, 1.95),
    'soft_tiny_bottleneck_64_in1k': (13.069, 1.99),
    'soft_tiny_bottleneck_81_in1k': (13.069, 2.04),
    'soft_tiny_avg_pool_in1k': (12.958, 1.93),
    'soft_tiny_random_in1k': (12.958, 1.93),
    'soft_tiny_biased_in1k': (12.958, 1.93),
    'soft_deit_small_in1k': (20.328, 4.11),
    'xcit_small_12_p16_in1k': (26.253, 4.81),
    'xcit_small_12_p16_efficient_in1k': (26.253, 4.88),
    'xcit_small_12_p16_cosformer_in1k': (26.253, 4.88),
    'xcit_small_12_p16_cosformer_2d_in1k': (26.253, 5.14),
    'sima_xcit_small_12_p16_no_norm_in1k': (26.253, 4.88),
    'deit_small_in1k': (22.051, 4.60),
    'deit_small_single_head_in1k': (22.051, 4.60),
}
INVERSES = {'36': 0.07, '49': 0.19, '64': 0.42, '81': 0.85}  # 20 iterations, of bottleneck tokens


# Their products are those of a config beside them.
ALIKE = (
    *('bottleneck_36', 'bottleneck_49', 'bottleneck_64', 'biased', 'gaussian_softmax'),
    *('no_norm', 'single_head', 'cosformer_in1k'),
)


# The page's check of heads and necks: the paper's ResNet-50 rows.
RESNETS = {
    'ATSS': 'mmdet::atss/atss_r50_fpn_1x_coco.py',
    'Cascade Mask R-CNN': 'mmdet::cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py',
    'GFL': 'mmdet::gfl/gfl_r50_fpn_1x_coco.py',
    'Sparse R-CNN': 'mmdet::sparse_rcnn/sparse-rcnn_r50_fpn_300-proposals_crop-ms-480-800-3x_coco.py',
}


@pytest.mark.slow
@pytest.mark.parametrize('detector', RESNETS)
def test_resnet_50_has_the_flops_of_the_page(detector, tmp_path):
    found = rows('| GFLOPs | ATSS |')
    column = found['GFLOPs'].index(detector)
    (tmp_path / 'base.py').write_text(f"_base_ = '{RESNETS[detector]}'\n")
    flops = measure(load_config(str(tmp_path / 'base.py'))).flops / 1e9
    assert f'{flops:.1f}' == found['ResNet-50, counted here'][column]
    products = 3.2 * (detector == 'Sparse R-CNN')  # of two activations, which the paper leaves out
    assert flops - products == pytest.approx(float(found['ResNet-50, paper'][column]), abs=0.7)


@pytest.mark.slow
def test_pvt_has_the_flops_of_the_page():
    pytest.importorskip('mmdet.models')
    init_default_scope('mmdet')
    depths = [2, 2, 2, 2], [3, 4, 6, 3], [3, 4, 18, 3], [3, 8, 27, 3]  # tiny to large
    models = [MODELS.build(dict(type='PyramidVisionTransformer', num_layers=each)) for each in depths]
    flops = [sum(count_flops(model, torch.randn(1, 3, 224, 224)).values()) / 1e9 for model in models]
    said = re.search(r"mmdet's PVT,\ncounted here with these products, has (.*) G\.", PAGE)[1]
    assert [f'{each:.2f}' for each in flops] == said.replace(' and ', ', ').split(', ')


@pytest.mark.parametrize(
    'name', [pytest.param(name, marks=[pytest.mark.slow] * any(one in name for one in ALIKE)) for name in DERIVED]
)
def test_what_the_papers_compare_with_is_as_large_as_it_must_be(name):
    size, (parameters, flops) = measure(load_config(str(ROOT / f'configs/{name}.py'))), DERIVED[name]
    assert size.parameters / 1e6 == pytest.approx(parameters, abs=1e-3)
    assert [f'{size.parameters / 1e6:.2f}', f'{size.flops / 1e9:.4g}'] == [*SIZES.loc[name, ['parameters', 'flops']]]
    assert size.flops / 1e9 == pytest.approx(flops, rel=0.03)  # the pooling to 81 tokens is a product, too
    for tokens, inverse in INVERSES.items():
        if f'bottleneck_{tokens}' in name:
            assert size.inverse / 1e9 == pytest.approx(inverse, abs=0.005)


@pytest.mark.slow
def test_four_products_of_cosines():
    """CosFormer's 2-D re-weighting has four times SimA's products, which are 2 n d² of each head."""
    names = (f'configs/xcit_small_12_p16_cosformer{suffix}_in1k.py' for suffix in ('_2d', ''))
    with_cosines, without = (measure(load_config(str(ROOT / name))).flops for name in names)
    assert with_cosines - without == pytest.approx(3 * 12 * 2 * 8 * 196 * 48**2, rel=0.02)  # and sums of weights


def test_the_page_has_every_config():
    assert [*SIZES.index] == sorted(path.stem for path in (ROOT / 'configs').glob('*.py'))


def test_the_page_is_what_data_and_metafiles_say():
    page = (ROOT / 'docs/zoo.md').read_text()
    for name, text in page_texts(ROOT / 'docs', PUBLISHED).items():
        assert f'<!-- benchmark {name} -->\n{text}\n<!-- end -->' in page, 'python -m benchmarks.zoo --scores --publish'


@pytest.mark.parametrize(
    'name, cells',
    [  # arXiv 2207.03341, Tables 3 to 6
        ('soft_tiny_in1k', ['79.4', 'arXiv 2207.03341, Table 3']),
        ('retinanet_soft_small_1x', ['42.8 (63.9, 45.7)', '–', 'arXiv 2207.03341, Table 4']),
        ('retinanet_soft_small_1x by area', ['26.9', '46.4', '57.6', 'arXiv 2207.03341, Table 4']),
        ('mask_rcnn_soft_small_1x', ['43.8 (66.0, 47.5)', '40.1 (63.0, 43.0)', 'arXiv 2207.03341, Table 4']),
        ('sparse_rcnn_soft_small_3x', ['47.1', '–', 'arXiv 2207.03341, Table 5']),
        ('upernet_soft_small_160k', ['46.2', 'arXiv 2207.03341, Table 6']),
        ('soft_tiny_gaussian_in1k', ['–', '–']),
    ],
)
def test_the_row_of_a_config_ends_with_its_scores(name, cells):
    name, _, by_area = name.partition(' ')
    start, place = (f'| {name} ', 2) if by_area else (f'| [{name}]', 4)
    (row,) = (line for line in (ROOT / 'docs/zoo.md').read_text().splitlines() if line.startswith(start))
    assert [cell.strip() for cell in row.split('|')[place:-1]] == cells


def test_scores_that_are_not_printed_leave_a_dash():
    models = dict(one=dict(Scores={'box AP': 1, 'box AP75': 2}, **{'Printed In': 'here'}), two=dict(Scores={'mIoU': 3}))
    assert score_rows(models, 'mmdet') == dict(one=('1.0 (–, 2.0)', '–', 'here'))


@pytest.mark.parametrize(
    'args, code, lines, err',
    [
        (['tiny_plain', '--shape', '64', '64'], 0, 3, 'soft_tiny_plain_in1k'),
        (['cvt_13_in1k', 'sima_deit', '--no-flops'], 0, 6, 'sima_cvt_13_in1k'),
        (['resnet'], 2, 0, 'No config is called resnet'),
        (['tiny', '--shape', '8', '64'], 2, 0, '--shape needs at least 32'),
        (['soft_tiny_1x', '--scores'], 0, 8, ''),  # a table of two, and by area of one
    ],
)
def test_command(capsys, args, code, lines, err):
    if code:
        with pytest.raises(UsageError, match=err):
            main(args)
    else:
        main(args)
        captured = capsys.readouterr()
        assert len(captured.out.splitlines()) == lines and captured.err.startswith(err)


def test_what_is_counted_is_printed_and_published(monkeypatch, capsys):
    published = []
    monkeypatch.setattr(zoo, 'measure', lambda cfg, shape, flops: Size(2e6, *[shape[0] * 1e9, 3e9, 1e9][: 3 * flops]))
    monkeypatch.setattr(zoo, 'publish', lambda docs, counted, _: published.append(len(counted)))
    main(['mask_rcnn_soft_tiny_1x', '--publish'])
    cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[2].split('|')[1:-1]]
    assert [cells[index] for index in (1, 3, 4, 6, 7)] == ['2.00', '1280×800', '800', '3', '1']
    main(['mask_rcnn_soft_tiny_1x', '--no-flops', '--publish'])
    main(['mask_rcnn_soft_tiny_1x', '--shape', '64', '96'])
    assert published == [1, 0] and '| 96×64' in capsys.readouterr().out


def test_what_is_counted_again_replaces_rows_of_the_same_config_alone(tmp_path):
    shutil.copytree(ROOT / 'docs/data', tmp_path / 'data')
    shutil.copy(ROOT / 'docs/zoo.md', tmp_path)
    before = load_sizes(tmp_path)
    counted = before[3:4].assign(flops='1.234')[before.columns[::-1]]
    publish(tmp_path, counted, PUBLISHED)
    before.loc[3, 'flops'] = '1.234'
    pd.testing.assert_frame_equal(load_sizes(tmp_path), before)
    assert (tmp_path / 'zoo.md').read_text().count('1.234') == 1
