"""What the protocol of attentions promises, for every attention in every backbone."""

import pytest
import torch
from devices import cpu_autocast
from mmcv.cnn import fuse_conv_bn
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from mmsoft.attention import Attention, Site, SOFTAttention, build_attention
from mmsoft.attention.base import MultiheadAttention
from mmsoft.backbones import SOFT, SimACvT, SimADeiT, SimAXCiT
from mmsoft.backbones.sima_cvt import ConvProjection
from mmsoft.checkpoint.names import to_mmsoft
from mmsoft.layers.blocks import PostNormBlock, PreNormBlock
from mmsoft.layers.xcit import attend_inside, extent_mask
from mmsoft.ops import soft_attention
from mmsoft.registry import MODELS

# Of the package's attentions, all that answer every token.
NAMES = sorted(
    name
    for name, made in MODELS.module_dict.items()
    if issubclass(made, Attention) and not made.for_class_token and made.__module__.startswith('mmsoft.attention')
)
BACKBONES = {
    'soft': lambda **kwargs: SOFT(dict(embed_dims=[32, 32, 64, 64], num_heads=[1, 1, 2, 2], depths=[1] * 4), **kwargs),
    'soft_all_stages': lambda attention, **kwargs: SOFT(
        dict(embed_dims=[32, 32, 64, 64], num_heads=[1, 1, 2, 2], depths=[1] * 4), attention=[attention] * 4, **kwargs
    ),
    'deit': lambda **kwargs: SimADeiT(dict(embed_dims=32, num_heads=2, depth=2), (0, 1), **kwargs),
    'xcit': lambda **kwargs: SimAXCiT(dict(embed_dims=32, num_heads=2, depth=2, patch_size=8), (0, 1), **kwargs),
    'cvt': lambda **kwargs: SimACvT(dict(embed_dims=[16, 32, 32], num_heads=[1, 2, 2], depths=[1] * 3), **kwargs),
}
each_name = pytest.mark.parametrize('name', NAMES)
each_backbone = pytest.mark.parametrize('backbone', BACKBONES)


def build(backbone, name, **kwargs):
    torch.manual_seed(0)
    model = BACKBONES[backbone](attention=dict(type=name), **kwargs)
    model.init_weights()
    return model


def tensors(outs):
    return [t for out in outs for t in (out if isinstance(out, tuple) else (out,))]


def test_all_are_here():
    assert {'SOFTAttention', 'SimAAttention', 'SoftmaxAttention', 'EfficientAttention', 'GaussianAttention'} <= {*NAMES}


@each_backbone
@each_name
@pytest.mark.parametrize('hw', [(33, 47), (96, 40)], ids=str)
def test_any_grid(backbone, name, hw):
    model = build(backbone, name, with_cls_token=True).train()
    outs = tensors(model(torch.randn(2, 3, *hw)))
    assert all(out.isfinite().all() for out in outs)
    assert all(out.is_contiguous() for out in outs if out.dim() == 4)
    sum((out * torch.randn_like(out)).sum() for out in outs).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@each_backbone
@each_name
@torch.no_grad()
def test_an_image_does_not_depend_on_the_rest_of_its_batch(backbone, name):
    model = build(backbone, name, with_cls_token=True).eval().double()
    images = torch.cat([torch.randn(1, 3, 64, 96), torch.zeros(1, 3, 64, 96), 9 * torch.randn(1, 3, 64, 96)]).double()
    together = tensors(model(images))
    for i in range(3):
        for batch, alone in zip(together, tensors(model(images[i : i + 1]))):
            assert_close(batch[i : i + 1], alone, rtol=1e-8, atol=1e-9)


@each_backbone
@each_name
@torch.no_grad()
def test_no_images(backbone, name):
    outs = build(backbone, name, with_cls_token=True).eval()(torch.rand(0, 3, 64, 64))
    assert all(len(out) == 0 for out in tensors(outs))


class Wrapped(nn.Sequential):
    """A user's module around an attention."""

    def forward(self, x, hw, mask=None):
        return self[0](x, hw, mask)


@each_name
@pytest.mark.parametrize('extra', [0, 1])
@pytest.mark.parametrize('wrapped', [False, True])
@torch.no_grad()
def test_mask(name, extra, wrapped):
    """What is masked does not matter; what is not gets what it gets alone."""
    torch.manual_seed(0)
    attn = build_attention(dict(type=name), Site(32, 2, (8, 8), ratio=2)).double()
    extent, hw = torch.tensor([[5, 9], [8, 10], [1, 3]]), (8, 10)
    x, mask = torch.randn(3, extra + 80, 32).double(), extent_mask(extent, hw)
    out = attend_inside(Wrapped(attn) if wrapped else attn, x, hw, mask, extent.tolist())
    assert out.shape == x.shape
    for i, (rows, columns) in enumerate(extent.tolist()):
        inside = torch.cat([torch.ones(extra).bool(), mask[i].flatten()])
        alone = attn(x[i : i + 1, inside], (rows, columns))
        assert_close(out[i, inside], alone[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    'cfg',
    [
        *(dict(type=name) for name in NAMES),
        *(dict(type='SOFTAttention', **{f'bottleneck_{key}': 5}) for key in ('size', 'limit')),
    ],
    ids=str,
)
def test_what_is_made_on_the_way_is_where_the_tokens_are(cfg):
    """Another device is the default."""
    attn, x = build_attention(cfg, Site(32, 2, (8, 8), ratio=2)), torch.randn(2, 81, 32)
    with torch.device('meta'):
        out = attn(x, (8, 10))
        out.sum().backward()
    assert_close(out, attn(x, (8, 10)))


class Reads(TorchDispatchMode):
    """Counts what the host waits for."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        return func(*args, **(kwargs or {}))


@each_name
@torch.no_grad()
def test_the_host_reads_nothing_in_a_block(name, monkeypatch):
    """Sizes of padded images are read once, whatever the number of blocks and images."""
    lists, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, 'tolist', lambda self: lists.append(self.shape) or tolist(self))
    model = build('xcit', name, mask_padding=True, with_cls_token=True).eval()
    images = torch.randn(3, 3, 64, 64)
    images[0, :, 40:] = 0
    with Reads() as reads:
        model(images)
    assert reads.count == 0 and lists in ([], [(3, 2)])
    assert bool(lists) != MODELS.get(name).takes_mask


@each_name
@torch.no_grad()
def test_padding_vanishes_in_a_backbone(name):
    images = torch.zeros(2, 3, 64, 96, dtype=torch.float64)
    images[0, :, :40, :57], images[1] = torch.randn(3, 40, 57), torch.randn(3, 64, 96)
    model = build('xcit', name, mask_padding=True, with_cls_token=True).eval().double()
    for padded, alone in zip(tensors(model(images)), tensors(model(images[:1, :, :40, :57]))):
        h, w = (*alone.shape, 1, 1)[2:4] if alone.dim() == 4 else (None, None)
        assert_close(padded[:1, :, :h, :w] if h else padded[:1], alone, rtol=1e-9, atol=1e-12)


@each_backbone
@torch.no_grad()
def test_norms_can_be_folded(backbone):
    """As mmcv's ``fuse_conv_bn`` does, which only looks at the order in which modules were made."""
    model = build(backbone, 'SimAAttention').eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                nn.init.uniform_(tensor, 0.5, 2)
    x = torch.randn(2, 3, 64, 96)
    want = model(x)
    assert_close(fuse_conv_bn(model)(x), want, rtol=1e-3, atol=1e-4)


@each_backbone
@torch.no_grad()
def test_attention_is_what_is_exchanged(backbone):
    """The results differ; all else has the same parameters."""
    models = [build(backbone, name).eval() for name in NAMES]
    x = torch.randn(1, 3, 64, 64)
    outs = torch.stack([model(x)[-1].flatten() for model in models])
    assert (torch.cdist(outs, outs) + torch.eye(len(outs)) > 1e-6).all()
    rest = [{name for name in model.state_dict() if '.attn.' not in name} for model in models]
    assert all(names == rest[0] for names in rest)


def test_one_for_each_stage():
    soft, softmax = dict(type='SOFTAttention', sampling='avg_pool'), dict(type='mmsoft.SoftmaxAttention')
    attention = [softmax, soft, dict(type='EfficientAttention'), softmax]
    model = SOFT('tiny', attention=attention)
    assert [type(stage.blocks[0].attn).__name__ for stage in model.stages] == [
        'SoftmaxAttention',
        'SOFTAttention',
        'EfficientAttention',
        'SoftmaxAttention',
    ]
    assert [type(stage.blocks[0]) for stage in model.stages] == [PostNormBlock] * 3 + [PreNormBlock]
    assert isinstance(SOFT('tiny', attention=[soft] * 4).stages[3].blocks[0], PostNormBlock)
    with pytest.raises(ValueError, match='each of the 4 stages; got 2'):
        SOFT('tiny', attention=[soft, soft])


class PlainSOFT(SOFTAttention):
    """A user's, without the option ``norm``."""

    def __init__(self, site):
        super().__init__(site, norm=False)


@pytest.mark.parametrize('kwargs, plain', [
    (dict(attention_norm=False), True),
    (dict(attention_norm=False, attention=dict(type='SOFTAttention')), True),
    (dict(attention_norm=False, attention=[dict(type='mmsoft.SOFTAttention')] * 4), True),
    (dict(attention_norm=False, attention=dict(type=SOFTAttention, norm=True)), False),
    (dict(attention=dict(type='SOFTAttention', norm=False)), True),
    (dict(attention=dict(type='SOFTAttention')), False),
    (dict(attention=dict(type=PlainSOFT)), True),
    (dict(), False),
], ids=str)  # yapf: disable
def test_attention_norm_is_not_lost(kwargs, plain):
    assert (SOFT('tiny', **kwargs).stages[0].blocks[0].attn.product is soft_attention) == plain


@pytest.mark.parametrize('grad', [True, False])
@pytest.mark.parametrize(
    'backbone, name',
    [
        *((backbone, 'SOFTAttention') for backbone in BACKBONES),
        *(('deit', name) for name in NAMES),
        ('xcit', 'SimAAttention'),
        ('cvt', 'SimAAttention'),
    ],
)
def test_low_rank_adapters_fit_every_linear_map(backbone, name, grad):
    """Of mmpretrain, which replaces modules by others of another class; at first they change nothing."""
    lora = pytest.importorskip('mmpretrain.models.peft.lora')

    model, x = build(backbone, name).eval(), torch.rand(1, 3, 64, 64)
    linear = [key for key, module in model.named_modules() if isinstance(module, nn.Linear)]
    with torch.set_grad_enabled(grad):
        want = model(x)
        for key in linear:
            parent, _, child = key.rpartition('.')
            setattr(model.get_submodule(parent), child, lora.LoRALinear(model.get_submodule(key), rank=4))
        assert_close(model(x), want)


def test_a_function_in_the_registry():
    """OpenMMLab's registries take some, too."""
    MODELS.register_module(name='make', module=lambda: None)
    try:
        with pytest.raises(ValueError, match="there is no attention 'SOFTAtention'; choose one of"):
            SOFT('tiny', attention=dict(type='SOFTAtention'))
    finally:
        MODELS.module_dict.pop('make')


def test_one_file_is_enough():
    """An attention that is registered outside of the package."""

    @MODELS.register_module()
    class MeanAttention(MultiheadAttention):
        def product(self, q, k, v, mask=None):
            return v.mean(2, keepdim=True).expand_as(q)

    try:
        for backbone in BACKBONES:
            outs = build(backbone, 'MeanAttention')(torch.rand(1, 3, 64, 64))
            assert all(out.isfinite().all() for out in outs)
    finally:
        MODELS.module_dict.pop('MeanAttention')


@pytest.mark.parametrize(
    'attention, words',
    [
        (dict(type='LinearAttention'), "no attention 'LinearAttention'; choose one of CosFormerAttention, Effic"),
        (dict(type='SOFTAttention', magic=1), "SOFTAttention: .*unexpected keyword argument 'magic'"),
        (dict(type='SOFTAttention', sampling='magic'), 'sampling must be one of'),
        (dict(type='SOFTAttention', newton_iterations=0), 'at least 1; got 0'),
        ([dict()] * 4, 'there is no attention None'),
        (dict(type='SOFT'), "there is no attention 'SOFT'"),
        (dict(type=nn.Identity), 'there is no attention <class'),
        ([dict(type='SOFTAttention')] * 3 + ['SoftmaxAttention'], "is a dict, as in .* got 'SoftmaxAttention'"),
        ('SoftmaxAttention', "is a dict, as in .* got 'SoftmaxAttention'"),
        (None, 'is a dict, as in .* got None'),
        (dict(type='SimAAttention', p=0), 'p must be one of 1, 2, None; got 0'),
        (dict(type='SimAAttention', reference_tokens=0), 'reference_tokens must be at least 1; got 0'),
        (dict(type='SimAClassAttention'), 'SimAClassAttention returns only the class token; choose another'),
        (dict(type='GaussianAttention', normalise='l2'), "normalise must be one of none, softmax, mean; got 'l2'"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said(attention, words):
    with pytest.raises(ValueError, match=words):
        SOFT('tiny', attention=attention)


def test_names_of_a_users_attention_are_its_own():
    """Among them ``q.conv`` and ``q.proj``, as CvT's projections are called within ``qkv``."""

    class Own(MultiheadAttention):
        def __init__(self, site):
            super().__init__(site)
            self.q = ConvProjection(site.dims, 1, dict(type='BN'))

        def product(self, q, k, v, mask=None):
            return v

    source, attn = Own(Site(32, 2, (6, 10))), Own(Site(32, 2, (6, 10)))
    assert str(attn.load_state_dict(source.state_dict())) == '<All keys matched successfully>'
    names = {f'blocks.0.attn.{name}': tensor for name, tensor in source.state_dict().items()}
    assert set(to_mmsoft(names)[1]) == set(names)


@each_backbone
@each_name
def test_own_checkpoints_of_any_attention(backbone, name, tmp_path):
    """As a pretrained classifier leaves them for a detector."""
    source, path = build(backbone, name), str(tmp_path / 'own.pth')
    torch.save(dict(state_dict={f'backbone.{key}': tensor for key, tensor in source.state_dict().items()}), path)
    model = BACKBONES[backbone](attention=dict(type=name), init_cfg=dict(type='Pretrained', checkpoint=path))
    model.init_weights()
    assert all(torch.equal(tensor, source.state_dict()[key]) for key, tensor in model.state_dict().items())


@each_name
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=str)
@torch.no_grad()
def test_half_precision(name, dtype):
    """Thousands of tokens, whose sums leave float16 and whose means are subnormal there."""
    attn = build_attention(dict(type=name), Site(32, 2, (64, 64), ratio=8)).eval()
    for linear in attn.modules():
        if isinstance(linear, nn.Linear):
            nn.init.normal_(linear.weight, std=0.3)
    nn.init.zeros_(attn.proj.bias)  # beside which SimA's result, of order 1/n, would be lost in any half precision
    x = torch.randn(1, 64 * 64, 32)
    want = attn(x, (64, 64))
    with cpu_autocast(dtype):
        got = attn(x, (64, 64))
    assert got.isfinite().all() and (got - want).norm() < 0.05 * want.norm()


@pytest.mark.parametrize(
    'cfg', [*(dict(type=name) for name in NAMES), dict(type='CosFormerAttention', reweight=True)], ids=str
)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float64], ids=str)
@torch.no_grad()
def test_modules_of_other_dtypes(cfg, dtype):
    attn, x = build_attention(cfg, Site(32, 2, (8, 8), ratio=2)).eval(), torch.randn(2, 64, 32)
    want = attn(x, (8, 8))
    got = attn.to(dtype)(x.to(dtype), (8, 8))
    assert got.dtype == dtype and (got - want).norm() < (0.1 if dtype == torch.bfloat16 else 1e-4) * want.norm()


def test_errors_inside_an_attention_keep_their_kind():

    @MODELS.register_module()
    class BrokenAttention(Attention):
        def __init__(self, site):
            super().__init__(site)
            dict()['nothing']

    try:
        with pytest.raises(KeyError, match='nothing'):
            SOFT('tiny', attention=dict(type='BrokenAttention'))
    finally:
        MODELS.module_dict.pop('BrokenAttention')


@torch.no_grad()
def test_names_of_ones_own_are_left_alone():

    class Own(MultiheadAttention):
        def __init__(self, site):
            super().__init__(site)
            self.q = nn.Module()
            self.q.proj = nn.Linear(4, 4)

    source, twin = Own(Site(4, 1, (2, 2))), Own(Site(4, 1, (2, 2)))
    twin.load_state_dict(source.state_dict())
    assert torch.equal(source.q.proj.weight, twin.q.proj.weight)
