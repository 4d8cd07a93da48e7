"""The papers' figures: what they are drawn from, and what is said of bad input."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from mmengine.registry import MODELS
from PIL import Image

from benchmarks.common import ROOT
from benchmarks.figures import __main__ as figures
from benchmarks.figures import memory, newton, spectral_norms
from benchmarks.figures.__main__ import FIGURES, main
from benchmarks.figures.inputs import NETWORKS, build, scenes
from benchmarks.figures.spectral_norms import norms
from benchmarks.inside import bottlenecks
from mmsoft.ops import newton_inverse
from mmsoft.ops.soft import soft_norm_alpha
from mmsoft.utils import UsageError

SOFT = dict(type='mmsoft.SOFT', arch=dict(embed_dims=[16] * 4, num_heads=[2] * 4, depths=[1] * 4))


def test_newtons_curves_are_the_iterations():
    x = torch.randn(9, 4).double()
    matrix = torch.exp(-0.5 * torch.cdist(x, x) ** 2)
    residuals, distances = newton.errors(torch.linalg.eigvalsh(matrix)[None], torch.tensor([[0.02]]).double(), 12)
    inverse = torch.linalg.inv(matrix)
    for k in range(13):
        step = newton_inverse(matrix, torch.tensor(0.02), k)
        for found, error, whole in (
            (residuals, matrix @ step @ matrix - matrix, matrix),
            (distances, step - inverse, inverse),
        ):
            want = torch.linalg.matrix_norm(error, 2) / torch.linalg.matrix_norm(whole, 2)
            assert found[0, k].item() == pytest.approx(want.item(), rel=1e-4, abs=1e-10)


@pytest.mark.parametrize('spread', [0.5, 1.0, 3.0])
def test_normalisation_bounds_the_norm_of_the_inverse(spread):
    """SOFT-Norm, Prop. 6, first line: ‖D^-½ A⁻¹ D^-½‖ ≤ ‖D⁻¹‖ ‖A⁻¹‖; norms as the figure has them, and as defined."""
    bottleneck = spread * torch.randn(2, 12, 32).double() / 32**0.5
    kernel = torch.exp(-0.5 * torch.cdist(bottleneck, bottleneck) ** 2)
    row_sums = kernel.sum(-1)
    alpha = soft_norm_alpha(kernel[None], row_sums[None, ..., None])[0, ..., 0]
    found = {(name, kind): values for name, kind, values in norms(kernel, alpha)}
    scale = torch.diag_embed(row_sums**-0.5)
    inverse = torch.linalg.inv(kernel)
    assert torch.allclose(found['exact', 'plain'], torch.linalg.matrix_norm(inverse, 2), rtol=1e-6)
    assert torch.allclose(found['exact', 'normalised'], torch.linalg.matrix_norm(scale @ inverse @ scale, 2), rtol=1e-6)
    for name in spectral_norms.INVERSES:
        plain, normalised = found[name, 'plain'], found[name, 'normalised']
        assert (normalised <= plain / row_sums.amin(-1)).all() and (normalised < plain).all()


def test_bytes_kept_for_the_backward_pass():
    """By hand for softmax attention in three steps, whose probabilities of each head dominate."""
    fused, unfused = (memory.kept_bytes(name, 8, 1) for name in ('Transformer, fused kernel', 'Transformer, unfused'))
    assert unfused - fused == pytest.approx(4 * memory.HEADS * (7 * 8) ** 4, rel=0.03)


@pytest.fixture(scope='module')
def networks():
    """A small one of each kind."""
    arch = dict(SOFT['arch'], depths=[1, 1, 2, 1])
    return {name: build(dict(cfg, arch=arch)).double() for name, cfg in NETWORKS.items()}


def inverted(network, stage):
    return [one for one in bottlenecks(network, scenes(64, 1)[0].double()) if one.stage == stage]


def test_newtons_lines_are_of_the_network_the_stage_and_the_measure(networks, monkeypatch):
    monkeypatch.setattr(newton, 'SIDE', 64)
    monkeypatch.setattr(newton, 'IMAGES', 1)
    axes = newton.draw(newton.measure(networks), '').axes
    assert [axes[0].get_ylabel(), axes[2].get_ylabel()] == [*newton.MEASURES.values()]
    for row in range(2):
        for column, (name, title) in enumerate(newton.USES.items()):
            panel = axes[2 * row + column]
            assert axes[column].get_title() == title
            for stage in range(3):
                errors = []
                for one in inverted(networks[name], stage):
                    step = newton_inverse(one.matrix, one.alpha.unsqueeze(-1), 3)
                    whole = torch.linalg.inv(one.matrix) if row else one.matrix
                    error = step - whole if row else one.matrix @ step @ one.matrix - whole
                    errors.append(torch.linalg.matrix_norm(error, 2) / torch.linalg.matrix_norm(whole, 2))
                line = panel.lines[stage]
                assert line.get_ydata()[3] == pytest.approx(torch.cat(errors).mean().item(), rel=1e-3)
                assert line.get_label() == f'stage {stage}, mean'


def test_spectral_norms_are_of_the_last_block_and_drawn_by_inverse_and_normalisation(networks, monkeypatch):
    monkeypatch.setattr(spectral_norms, 'SIDES', (64,))
    monkeypatch.setattr(spectral_norms, 'IMAGES', 1)
    table = spectral_norms.measure(networks).query("inverse == 'exact' and kind == 'plain'")
    inverse = torch.linalg.inv(inverted(networks['soft_norm'], 2)[-1].matrix)
    assert table.value.tolist() == pytest.approx(torch.linalg.matrix_norm(inverse, 2).tolist())
    parts = [*product(spectral_norms.INVERSES, spectral_norms.KINDS)]
    rows = [(*part, m, float(value)) for value, part in enumerate(parts, 1) for m in (4, 9)]
    figure = spectral_norms.draw(pd.DataFrame(rows, columns=['inverse', 'kind', 'm', 'value']), '')
    lines = [panel.lines[index].get_ydata().tolist() for panel in figure.axes for index in (0, 2)]
    assert lines == [[value] * 2 for value in (1.0, 2.0, 3.0, 4.0)]
    assert [panel.get_title() for panel in figure.axes] == [title for _, title in spectral_norms.INVERSES.values()]


def test_networks_are_what_they_are_called_and_the_same_each_time(networks, monkeypatch, tmp_path):
    for name, network in networks.items():
        assert network.stages[0].blocks[0].attn.norm == (name == 'soft_norm')
    one, other = (build(SOFT).state_dict() for _ in range(2))
    assert all(one[key].equal(other[key]) for key in one)
    titles = []
    module = SimpleNamespace(
        TITLE='',
        USES=('soft', 'soft_norm'),
        measure=lambda networks: pd.DataFrame(dict(x=[1])),
        draw=lambda table, weights: titles.append(weights) or Figure(),
    )
    monkeypatch.setattr(figures, 'FIGURES', dict(newton=module))
    monkeypatch.setattr(figures, 'NETWORKS', dict(soft=SOFT, soft_norm=SOFT))
    monkeypatch.setattr(figures, 'trained', lambda config, checkpoint: SOFT)
    main(['newton', '--network', 'soft', 'config', 'checkpoint', '--out-dir', str(tmp_path)])
    assert titles == ['trained weights of soft, random weights of soft_norm']


def test_memory_is_of_twelve_blocks(monkeypatch):
    monkeypatch.setattr(memory, 'kept_bytes', lambda *asked: asked)
    for row in memory.measure({}).itertuples():
        assert row.bytes == (row.attention, round(row.tokens**0.5) // 7, 12)


@pytest.mark.parametrize('attention', memory.ATTENTIONS)
def test_memory_grows_as_the_paper_says_and_is_that_of_the_page(attention):
    kept = [memory.kept_bytes(attention, ratio, 1) for ratio in (8, 16)]
    assert np.log2(kept[1] / kept[0]) / 2 == pytest.approx(2 if 'unfused' in attention else 1, abs=0.12)
    published = pd.read_csv(ROOT / 'docs/data/figure_memory.csv').set_index(['attention', 'tokens']).bytes
    assert published[attention, (7 * 8) ** 2] == pytest.approx(12 * kept[0], rel=1e-3)


@pytest.fixture(scope='module')
def drawn(tmp_path_factory):
    """All figures, in small, by the command line."""
    folder = tmp_path_factory.mktemp('figures')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, 'NETWORKS', dict.fromkeys(figures.NETWORKS, SOFT))
        for module, settings in {
            memory: dict(RATIOS=(2, 3, 4), DEPTH=1),
            newton: dict(SIDE=64, IMAGES=1),
            spectral_norms: dict(SIDES=(64, 96), IMAGES=1),
        }.items():
            for name, value in settings.items():
                patch.setattr(module, name, value)
        main(['--out-dir', str(folder)])
        main(['newton', '--out-dir', str(folder)])  # again: it replaces its own
    return folder


@pytest.mark.parametrize('name', FIGURES)
def test_every_figure_is_an_image_and_its_table(drawn, name):
    with Image.open(drawn / f'{name}.png') as image:
        assert min(image.size) > 200 and np.asarray(image.convert('L')).std() > 10
    table = pd.read_csv(drawn / f'{name}.csv')
    assert len(table) and table.select_dtypes('number').abs().to_numpy().max() < np.inf


def trained(tmp_path, name='soft', model=SOFT):
    config = tmp_path / f'{name}.py'
    config.write_text(f'default_scope = "mmpretrain"\nmodel = {model and dict(backbone=model)!r}\n')
    (tmp_path / 'broken.pth').write_bytes(b'no checkpoint')
    return ['--network', name, str(config), str(tmp_path / 'broken.pth')]


@pytest.mark.parametrize(
    'given, fault',
    [
        (lambda folder: ['mona_lisa'], 'no figure mona_lisa; choose from memory'),
        (lambda folder: ['newton', '--network', 'gpt', '', ''], 'no network gpt; choose from soft'),
        (lambda folder: ['newton', *trained(folder)], 'broken.pth'),
        (lambda folder: ['newton', *trained(folder, model=None)], 'no model with a backbone'),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else '',
)
def test_bad_input_gets_a_sentence(tmp_path, given, fault):
    with pytest.raises(UsageError, match=fault) as error:
        main([*given(tmp_path), '--out-dir', str(tmp_path / 'out')])
    assert '\n' not in str(error.value) and not (tmp_path / 'out').exists()


@pytest.mark.parametrize('figure', ['newton', 'spectral_norms'])
def test_a_network_that_does_not_fit_gets_a_sentence(tmp_path, figure):
    model = dict(SOFT, attention=dict(type='CosFormerAttention'))
    checkpoint = tmp_path / 'weights.pth'
    torch.save(MODELS.build(model).state_dict(), checkpoint)
    networks = [[*trained(tmp_path, name, model)[:3], str(checkpoint)] for name in ('soft', 'soft_norm')]
    with pytest.raises(UsageError, match='which this measurement needs'):
        main([figure, '--out-dir', str(tmp_path / 'out'), *networks[0], *networks[1]])
