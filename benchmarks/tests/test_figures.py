"""The papers' figures: what they are drawn from, and what is said of bad input."""
import sys
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from mmengine.registry import MODELS
from PIL import Image

from benchmarks.figures import FIGURES, memory, newton
from benchmarks.figures.command import main, make_figures
from benchmarks.figures.exponentials import ExponentialCounter, count
from benchmarks.figures.options import Options
from benchmarks.figures.products import last_product
from benchmarks.figures.saliency import lengths
from benchmarks.figures.spectral_norms import norms
from mmsoft.attention import Attention, Site, SoftmaxAttention, build_attention
from mmsoft.backbones import SimADeiT
from mmsoft.ops import newton_inverse
from mmsoft.ops.soft import soft_norm_alpha
from mmsoft.utils import UsageError

HW, SITE = (6, 8), Site(32, 2, (6, 8), ratio=2)
N, M = 48, 12
SOFT = dict(type='mmsoft.SOFT', arch=dict(embed_dims=[16] * 4, num_heads=[2] * 4, depths=[1] * 4))


def made(kind, **options):
    return build_attention(dict(type=kind, **options), SITE).double().eval()


class Body(torch.nn.Module):
    """A body of one attention, and the tokens that it sees."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        return self.attention(x, HW)


def dense(attention, x):
    """The attention's matrix of shape (h, n, n), of its tokens alone, written as the papers write it."""
    kind = type(attention).__name__
    if kind.startswith('SOFT'):
        q = (attention.query(x) * attention.scale).unflatten(2, (2, 16)).transpose(1, 2)
        b = attention.bottleneck(q[0, :, -N:].transpose(1, 2).unflatten(2, HW))
        a, p = (torch.exp(-0.5 * torch.cdist(b, y)**2) for y in (b, q[0]))
        scale = torch.diag_embed(a.sum(-1)**-0.5) if attention.options_norm else torch.eye(M).double()
        ridge = 0 if attention.options_norm else 0.01
        inverse = torch.linalg.inv(a + ridge * torch.eye(M).double())
        return p.transpose(1, 2) @ scale @ inverse @ scale @ p
    q, k, _ = (t[0] for t in attention.qkv(x, HW))
    if kind == 'SimAAttention':
        q, k = (t / t.abs().sum(-2, keepdim=True) for t in (q, k))
        return q @ k.transpose(1, 2)
    if kind == 'PerformerAttention':
        q, k = (torch.exp(t / 2 @ attention.features.T - (t / 2).square().sum(-1, keepdim=True) / 2) for t in (q, k))
        weights = q @ k.transpose(1, 2)
        return weights / weights.sum(-1, keepdim=True)
    if kind == 'NystromformerAttention':
        q, k = q / 2, k / 2
        maps = (t[:, -N:].transpose(1, 2).unflatten(2, HW) for t in (q, k))
        means = [torch.nn.functional.avg_pool2d(t, 2).flatten(2).transpose(1, 2) for t in maps]
        f, a, b = (x @ y.transpose(1, 2) for x, y in ((q, means[1]), means, (means[0], k)))
        return f.softmax(-1) @ torch.linalg.pinv(a.softmax(-1)) @ b.softmax(-1)
    return (q @ k.transpose(1, 2) / 4).softmax(-1)


@pytest.mark.parametrize('extra', [0, 1])
@pytest.mark.parametrize('kind, options', [
    ('SoftmaxAttention', {}), ('PerformerAttention', {}), ('NystromformerAttention', dict(iterations=60)),
    ('SimAAttention', {}), ('SOFTAttention', dict(norm=False, newton_iterations=60, inverse='closed_form')),
    ('SOFTAttention', dict(norm=True, newton_iterations=60, inverse='closed_form'))
], ids=lambda value: value if isinstance(value, str) else '-'.join(map(str, value.values())))
def test_a_row_is_that_of_the_dense_matrix(kind, options, extra):
    attention, x = made(kind, **options), torch.randn(1, extra + N, 32).double()
    attention.options_norm = options.get('norm')
    with torch.no_grad():
        want = dense(attention, x)
    product = last_product(Body(attention), x, Attention)
    assert product.hw == HW and product.extra == extra
    for token in (0, 29):
        row = product.row(token)
        assert row.shape == (1, 2, *HW)
        torch.testing.assert_close(row.flatten(2)[0], want[:, extra + token, extra:], rtol=1e-5, atol=1e-8)


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


def command_line(*arguments):
    with mock.patch.object(sys, 'argv', ['figures.py', *arguments]):
        return main()


@pytest.fixture(scope='module')
def quick(tmp_path_factory):
    """All figures, in small, by the command line."""
    folder = tmp_path_factory.mktemp('figures')
    assert command_line('--quick', '--out-dir', str(folder)) == 0
    return folder


@pytest.mark.parametrize('name', FIGURES)
def test_every_figure_is_a_picture_and_its_table(quick, name):
    with Image.open(quick / f'{name}.png') as picture:
        assert min(picture.size) > 200 and np.asarray(picture.convert('L')).std() > 10
    table = pd.read_csv(quick / f'{name}.csv')
    assert len(table) and table.select_dtypes('number').abs().to_numpy().max() < np.inf


def test_pictures_of_a_folder(tmp_path):
    Image.fromarray(np.random.randint(0, 256, (60, 90, 3), np.uint8)).save(tmp_path / 'a.png')
    picture, = Options(folder=tmp_path).pictures(32)
    assert picture.name == 'a.png' and picture.tensor().shape == (1, 3, 32, 32) and picture.pixels.dtype == np.uint8
    assert picture.focus == (0.5, 0.5)


def trained(tmp_path, name='soft', model=SOFT):
    config = tmp_path / f'{name}.py'
    config.write_text(f'default_scope = "mmpretrain"\nmodel = {model and dict(backbone=model)!r}\n')
    (tmp_path / 'broken.pth').write_bytes(b'no checkpoint')
    return {name: (str(config), str(tmp_path / 'broken.pth'))}


def empty(folder):
    return dict(options=Options(folder=folder))


def no_picture(folder):
    (folder / 'a.png').write_bytes(b'no picture')
    return dict(options=Options(folder=folder))


def there_already(folder):
    (folder / 'out').mkdir()
    (folder / 'out' / 'newton.csv').write_text('mine')
    return {}


@pytest.mark.parametrize('given, fault', [
    (lambda folder: dict(names=['mona_lisa']), 'no figure mona_lisa; choose from memory'),
    (lambda folder: dict(options=Options(networks=dict(gpt=('', '')))), 'no network gpt; choose from soft'),
    (lambda folder: dict(options=Options(query=(2., 0.))), '--query two numbers between 0 and 1'),
    (lambda folder: dict(options=Options(count=0)), '--count is 1 or more'),
    (lambda folder: dict(options=Options(folder=folder / 'nowhere')), 'There is no image or folder'),
    (empty, 'holds no images'), (no_picture, 'a.png is not a picture that can be read'),
    (there_already, 'is not replaced without --force'),
    (lambda folder: dict(options=Options(networks=trained(folder), quick=True)), 'broken.pth'),
    (lambda folder: dict(options=Options(networks=trained(folder, model=None), quick=True)), 'no model with a backbone'),
], ids=lambda value: value.split()[0] if isinstance(value, str) else '')
def test_bad_input_gets_a_sentence(tmp_path, given, fault):
    arguments = dict(dict(names=['newton'], out_dir=tmp_path / 'out'), **given(tmp_path))
    with pytest.raises(UsageError, match=fault) as error:
        make_figures(**arguments)
    assert '\n' not in str(error.value)
    if fault.startswith('is not replaced'):
        assert (tmp_path / 'out' / 'newton.csv').read_text() == 'mine'


def test_the_command_line_says_it_in_a_line(tmp_path, capsys):
    assert command_line('mona_lisa', '--out-dir', str(tmp_path)) == 2
    assert capsys.readouterr().err.count('\n') == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize('figure, network', [('newton', 'soft'), ('heat_maps', 'performer'), ('saliency', 'sima_deit')])
def test_a_body_that_does_not_fit_gets_a_sentence(tmp_path, figure, network):
    model = dict(SOFT, attention=dict(type='CosFormerAttention'))
    checkpoint = tmp_path / 'weights.pth'
    torch.save(MODELS.build(model).state_dict(), checkpoint)
    config, _ = trained(tmp_path, network, model)[network]
    options = Options(networks={network: (config, str(checkpoint))}, quick=True, count=1)
    with pytest.raises(UsageError, match='which this figure shows|inverts no matrix'):
        make_figures([figure], tmp_path / 'out', options=options)
