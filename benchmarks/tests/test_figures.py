"""The papers' figures: what they are drawn from, and what is said of bad input."""
import numpy as np
import pandas as pd
import pytest
import torch
from mmengine.registry import MODELS
from PIL import Image

from benchmarks.figures import FIGURES, main, make_figures, memory, newton
from benchmarks.figures.exponentials import ExponentialCounter, count
from benchmarks.figures.inputs import Inputs
from benchmarks.figures.saliency import lengths
from benchmarks.figures.spectral_norms import norms
from mmsoft.attention import Site, SoftmaxAttention, build_attention
from mmsoft.backbones import SimADeiT
from mmsoft.ops import newton_inverse
from mmsoft.ops.soft import soft_norm_alpha
from mmsoft.utils import UsageError

HW, SITE = (6, 8), Site(32, 2, (6, 8), ratio=2)
N, M = 48, 12
SOFT = dict(type='mmsoft.SOFT', arch=dict(embed_dims=[16] * 4, num_heads=[2] * 4, depths=[1] * 4))


def test_lengths_leave_out_the_class_token():
    q = torch.randn(1, 2, 5, 3).double()
    q_hat = q / q.abs().sum(2, keepdim=True)
    concatenated = q_hat[0].transpose(0, 1).reshape(5, 6)
    torch.testing.assert_close(lengths(q, 1, True), concatenated[1:].norm(dim=1))
    torch.testing.assert_close(lengths(q, 0, False), q[0].transpose(0, 1).reshape(5, 6).norm(dim=1))


def test_newtons_curves_are_the_iterations():
    x = torch.randn(9, 4).double()
    matrix = torch.exp(-0.5 * torch.cdist(x, x)**2)
    residuals, distances = newton.errors(torch.linalg.eigvalsh(matrix)[None], torch.tensor([[0.02]]).double(), 12)
    inverse = torch.linalg.inv(matrix)
    for k in range(13):
        step = newton_inverse(matrix, torch.tensor(0.02), k)
        for found, error, whole in ((residuals, matrix @ step @ matrix - matrix, matrix),
                                    (distances, step - inverse, inverse)):
            want = torch.linalg.matrix_norm(error, 2) / torch.linalg.matrix_norm(whole, 2)
            assert found[0, k].item() == pytest.approx(want.item(), rel=1e-4, abs=1e-10)


@pytest.mark.parametrize('spread', [0.5, 1., 3.])
def test_normalisation_bounds_the_norm_of_the_inverse(spread):
    """SOFT-Norm, Prop. 6, first line: ‖D^-½ A⁻¹ D^-½‖ ≤ ‖D⁻¹‖ ‖A⁻¹‖; norms as the figure has them, and as defined."""
    bottleneck = spread * torch.randn(2, 12, 32).double() / 32**0.5
    kernel = torch.exp(-0.5 * torch.cdist(bottleneck, bottleneck)**2)
    row_sums = kernel.sum(-1)
    found = norms(kernel, soft_norm_alpha(kernel[None], row_sums[None, ..., None])[0, ..., 0])
    scale = torch.diag_embed(row_sums**-0.5)
    inverse = torch.linalg.inv(kernel)
    assert torch.allclose(found['exact']['plain'], torch.linalg.matrix_norm(inverse, 2), rtol=1e-6)
    assert torch.allclose(found['exact']['normalised'], torch.linalg.matrix_norm(scale @ inverse @ scale, 2), rtol=1e-6)
    for kinds in found.values():
        assert (kinds['normalised'] <= kinds['plain'] / row_sums.amin(-1)).all()
        assert (kinds['normalised'] < kinds['plain']).all()


def test_peak_bytes_of_what_lives_at_the_same_time():
    given = torch.zeros(1000)
    with memory.PeakBytes() as mode:
        a = given.view(10, 100) + 1
        b = a.view(10, 100) + 1
        del a
        c = b[0] * 2
        assert mode.live == 4000 + 400
        del b
        c = torch.zeros(1500)
    assert mode.peak == 8000 and mode.live == 6000
    del c
    assert mode.live == 0


@pytest.mark.parametrize('attention, exponent', [(name, 2 if name == 'Transformer, unfused' else 1)
                                                 for name in memory.ATTENTIONS])
def test_memory_grows_as_the_paper_says(attention, exponent):
    peaks = [memory.peak(attention, ratio, backward=True, depth=1) for ratio in (8, 16)]
    assert np.log2(peaks[1] / peaks[0]) / 2 == pytest.approx(exponent, abs=0.12)
    if exponent == 2:
        assert peaks[1] > 2 * 4 * memory.HEADS * (7 * 16)**4  # scores, or their gradient, and probabilities


FEATURES = 44  # d ln d of 16 channels


@pytest.mark.parametrize('kind, most, rest', [
    ('SoftmaxAttention', N * N, 0), ('LinformerAttention', N * M, 0), ('PerformerAttention', 2 * N * FEATURES, 0),
    ('NystromformerAttention', 2 * N * M + M * M, 0), ('EfficientAttention', 2 * N * 16, 0),
    ('SOFTAttention', 2 * N * M + M * M, N + M), ('GaussianAttention', N * N, N), ('CosFormerAttention', 0, 0),
    ('SimAAttention', 0, 0)
])
def test_exponentials_are_what_the_formulas_say(kind, most, rest):
    with torch.no_grad(), ExponentialCounter() as mode:
        build_attention(dict(type=kind), SITE)(torch.randn(1, N, 32), HW)
    found = mode.counts['softmax'] + mode.counts['exp']
    assert 2 * most <= found <= 2 * (most + rest)  # heads; the fused kernel's sums are exponentiated besides


def test_sima_with_relu_takes_no_exponential():
    """SimA, Sec. 4.5."""
    relu = dict(type='ReLU')
    small = dict(arch=dict(embed_dims=32, num_heads=2, depth=2), out_indices=(1, ))
    tokens_of_64_pixels, hidden = 1 + 16, 4 * 32
    assert count(SimADeiT(**small, act_cfg=relu), 64) == {}
    assert count(SimADeiT(**small), 64) == dict(gelu=2 * tokens_of_64_pixels * hidden)
    softmax = SimADeiT(**small, act_cfg=relu, attention=dict(type=SoftmaxAttention))
    assert count(softmax, 64) == dict(softmax=2 * 2 * tokens_of_64_pixels**2)


@pytest.fixture(scope='module')
def quick(tmp_path_factory):
    """All figures, in small, by the command line."""
    folder = tmp_path_factory.mktemp('figures')
    main(['--quick', '--out-dir', str(folder)])
    main(['newton', '--quick', '--out-dir', str(folder)])  # again: it replaces its own
    return folder


@pytest.mark.parametrize('name', FIGURES)
def test_every_figure_is_a_picture_and_its_table(quick, name):
    with Image.open(quick / f'{name}.png') as picture:
        assert min(picture.size) > 200 and np.asarray(picture.convert('L')).std() > 10
    table = pd.read_csv(quick / f'{name}.csv')
    assert len(table) and table.select_dtypes('number').abs().to_numpy().max() < np.inf


def test_images_of_a_folder(tmp_path):
    Image.fromarray(np.random.randint(0, 256, (60, 90, 3), np.uint8)).save(tmp_path / 'a.png')
    image, = Inputs(folder=tmp_path).images(32)
    assert image.name == 'a.png' and image.tensor().shape == (1, 3, 32, 32) and image.pixels.dtype == np.uint8
    assert image.focus == (0.5, 0.5)


def trained(tmp_path, name='soft', model=SOFT):
    config = tmp_path / f'{name}.py'
    config.write_text(f'default_scope = "mmpretrain"\nmodel = {model and dict(backbone=model)!r}\n')
    (tmp_path / 'broken.pth').write_bytes(b'no checkpoint')
    return {name: (str(config), str(tmp_path / 'broken.pth'))}


def no_image(folder):
    (folder / 'a.png').write_bytes(b'no image')
    return dict(inputs=Inputs(folder=folder))


@pytest.mark.parametrize('given, fault', [
    (lambda folder: dict(names=['mona_lisa']), 'no figure mona_lisa; choose from memory'),
    (lambda folder: dict(inputs=Inputs(networks=dict(gpt=('', '')))), 'no network gpt; choose from soft'),
    (lambda folder: dict(inputs=Inputs(folder=folder)), 'holds no images'),
    (no_image, 'a.png is not an image that can be read'),
    (lambda folder: dict(inputs=Inputs(networks=trained(folder), quick=True)), 'broken.pth'),
    (lambda folder: dict(inputs=Inputs(networks=trained(folder, model=None), quick=True)), 'no model with a backbone'),
], ids=lambda value: value.split()[0] if isinstance(value, str) else '')
def test_bad_input_gets_a_sentence(tmp_path, given, fault):
    arguments = dict(dict(names=['newton'], out_dir=tmp_path / 'out'), **given(tmp_path))
    with pytest.raises(UsageError, match=fault) as error:
        make_figures(**arguments)
    assert '\n' not in str(error.value) and not (tmp_path / 'out').exists()


@pytest.mark.parametrize('figure, network', [('newton', 'soft'), ('heat_maps', 'performer'), ('saliency', 'sima_deit')])
def test_a_network_that_does_not_fit_gets_a_sentence(tmp_path, figure, network):
    model = dict(SOFT, attention=dict(type='CosFormerAttention'))
    checkpoint = tmp_path / 'weights.pth'
    torch.save(MODELS.build(model).state_dict(), checkpoint)
    config, _ = trained(tmp_path, network, model)[network]
    inputs = Inputs(networks={network: (config, str(checkpoint))}, quick=True)
    with pytest.raises(UsageError, match='which this measurement needs'):
        make_figures([figure], tmp_path / 'out', inputs)
