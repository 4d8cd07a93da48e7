"""SimA from published weights of XCiT, DeiT and CvT, and what is said when weights and attention differ."""

import pytest
import torch
from mmengine.model import ExponentialMovingAverage
from mmengine.runner.checkpoint import get_state_dict, load_state_dict, weights_to_cpu
from published import published_state_dict
from torch import nn
from torch.nn import functional as F

from mmsoft.attention import Site, build_attention
from mmsoft.backbones import SOFT, SimACvT, SimADeiT, SimAXCiT
from mmsoft.checkpoint import load_pretrained, read_checkpoint

SMALL = dict(embed_dims=[32, 64], num_heads=[1, 2], depths=[1, 2])
XCIT = dict(embed_dims=32, num_heads=2, depth=2, patch_size=8)
DEIT = dict(embed_dims=32, num_heads=2, depth=2)
IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def log(monkeypatch):
    """Reports."""
    lines = []
    monkeypatch.setattr('mmsoft.checkpoint.load.print_log', lambda line, logger: lines.append(line))
    return lines


def randomised(model):
    torch.manual_seed(0)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor))
    return model.eval()


def timm_models(name, **options):
    return getattr(pytest.importorskip('timm.models'), name)(**options)


@pytest.fixture
def xcit():
    return randomised(
        timm_models(
            'Xcit',
            patch_size=8,
            img_size=64,
            embed_dim=32,
            depth=2,
            num_heads=2,
            num_classes=5,
            eta=1.0,
            tokens_norm=True,
        )
    )


def by_authors(state_dict):
    """XCiT's file under its authors' names (facebookresearch/xcit, xcit.py)."""
    theirs = {
        name.replace('pos_embed.', 'pos_embeder.'): tensor
        for name, tensor in state_dict.items()
        if not name.startswith('cls_attn_blocks') or '.attn.proj' in name or '.attn.' not in name
    }
    for i in range(2):
        for kind in ('weight', 'bias'):
            theirs[f'cls_attn_blocks.{i}.attn.qkv.{kind}'] = torch.cat(
                [state_dict[f'cls_attn_blocks.{i}.attn.{part}.{kind}'] for part in 'qkv']
            )
    return dict(model=theirs)


@torch.no_grad()
@pytest.mark.parametrize('names', ['authors', 'timm'])
def test_xcit(xcit, tmp_path, log, names):
    torch.save(by_authors(xcit.state_dict()) if names == 'authors' else xcit.state_dict(), tmp_path / 'x.pth')
    backbone = SimAXCiT(XCIT, out_type='cls_token')
    load_pretrained(backbone.eval(), str(tmp_path / 'x.pth'))
    ours, _ = backbone.patch_embed(IMAGES)
    theirs, hw = xcit.patch_embed(IMAGES)
    torch.testing.assert_close(ours.flatten(2).transpose(1, 2), theirs)
    places = xcit.pos_embed(1, *hw).flatten(2).transpose(1, 2)[0]
    torch.testing.assert_close(backbone.pos_encoding(ours)[0], places, rtol=1e-4, atol=1e-4)
    tokens = torch.randn(2, 64, 32)
    for ours, theirs in zip(backbone.blocks, xcit.blocks):
        torch.testing.assert_close(ours.ffn(tokens), theirs.mlp(tokens))
        torch.testing.assert_close(ours.lpi(tokens, hw), theirs.local_mp(tokens, *hw))
        q, k, v = ours.attn.split_heads(tokens, hw)
        assert torch.equal(
            torch.cat([part.transpose(1, 2).flatten(2) for part in (q, k, v)], -1), theirs.attn.qkv(tokens)
        )
    for ours, theirs in zip(backbone.cls_blocks, xcit.cls_attn_blocks):
        torch.testing.assert_close(ours.ffn(tokens), theirs.mlp(tokens))
        q, k, v = (part.transpose(1, 2).flatten(2) for part in ours.attn.split_heads(tokens, hw))
        torch.testing.assert_close((q, k, v), tuple(getattr(theirs.attn, x)(tokens) for x in 'qkv'))
    (report,) = log
    assert (
        'loaded 103 of the 103 tensors' in report
        and 'left out: attn.temperature (2), head (2); missing: none' in report
    )


@torch.no_grad()
@pytest.mark.parametrize('distilled', [False, True])
def test_deit(tmp_path, log, distilled):
    kind = 'VisionTransformerDistilled' if distilled else 'VisionTransformer'
    deit = randomised(timm_models(kind, img_size=64, embed_dim=32, depth=2, num_heads=2, num_classes=5))
    torch.save(dict(model=deit.state_dict()), tmp_path / 'x.pth')
    backbone = SimADeiT(DEIT, out_type='cls_token', img_size=64)
    load_pretrained(backbone.eval(), str(tmp_path / 'x.pth'))
    torch.testing.assert_close(backbone.patch_embed(IMAGES).flatten(2).transpose(1, 2), deit.patch_embed(IMAGES))
    places = deit.pos_embed[:, [0, *range(2, 18)]] if distilled else deit.pos_embed
    assert torch.equal(backbone.pos_embed, places) and torch.equal(backbone.cls_token, deit.cls_token)
    tokens = torch.randn(2, 17, 32)
    for ours, theirs in zip(backbone.blocks, deit.blocks):
        torch.testing.assert_close(ours.ffn(tokens), theirs.mlp(tokens))
    (report,) = log
    assert (
        f'left out: {"dist_token (1), head (2), head_dist (2)" if distilled else "head (2)"}; missing: none' in report
    )


@torch.no_grad()
def test_deit_itself_is_no_start_but_the_same(tmp_path, log):
    deit = randomised(timm_models('VisionTransformer', img_size=64, embed_dim=32, depth=2, num_heads=2, num_classes=5))
    torch.save(deit.state_dict(), tmp_path / 'x.pth')
    backbone = SimADeiT(DEIT, out_type='cls_token', img_size=64, attention=dict(type='SoftmaxAttention')).eval()
    load_pretrained(backbone, str(tmp_path / 'x.pth'))
    torch.testing.assert_close(backbone(IMAGES)[0], deit.forward_features(IMAGES)[:, 0], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_cvt(tmp_path, log):
    published = published_state_dict('cvt_13')
    torch.save(published, tmp_path / 'x.pth')
    backbone = SimACvT('13', out_indices=(0,))
    load_pretrained(backbone.eval(), str(tmp_path / 'x.pth'))
    embed = F.conv2d(
        IMAGES, published['stage0.patch_embed.proj.weight'], published['stage0.patch_embed.proj.bias'], 4, 2
    )
    torch.testing.assert_close(backbone.stages[0].embed(IMAGES), embed)
    tokens = torch.randn(2, 9, 64)
    fc1, fc2 = (
        [published[f'stage0.blocks.0.mlp.{name}.{kind}'] for kind in ('weight', 'bias')] for name in ('fc1', 'fc2')
    )
    wide = F.linear(tokens, *fc1)
    torch.testing.assert_close(
        backbone.stages[0].blocks[0].ffn(tokens), F.linear(wide * torch.sigmoid(1.702 * wide), *fc2)
    )


def states(model):
    """State dicts of a model, as torch, mmengine and its averaging of weights make them."""
    averaged = ExponentialMovingAverage(model).module
    return dict(
        torch=model.state_dict(), mmengine=weights_to_cpu(get_state_dict(model)), averaged=averaged.state_dict()
    )


@pytest.mark.parametrize('kind', ['torch', 'mmengine', 'averaged'])
def test_checkpoints_note_their_attention(tmp_path, kind, recwarn):
    """And any of them loads strictly, as do those that note nothing."""
    soft, norm = (nn.ModuleDict(dict(backbone=SOFT(SMALL, attention_norm=norm, out_indices=(0, 1)))) for norm in (0, 1))
    told = r'trained with SOFTAttention\(norm=0\) are loaded into SOFTAttention\(norm=1\)'
    path = tmp_path / 'x.pth'
    torch.save(dict(state_dict=states(soft)[kind], meta={}), path)
    saved = read_checkpoint(path)['state_dict']
    load_pretrained(soft.backbone, str(path))
    assert str(soft.load_state_dict(saved)) == '<All keys matched successfully>'
    assert str(norm.load_state_dict(dict(saved))) == '<All keys matched successfully>'
    assert not [one for one in recwarn if 'trained with' in str(one.message)]
    with pytest.warns(UserWarning, match=told):
        load_pretrained(norm.backbone, str(path))
    with pytest.warns(UserWarning, match=told):
        load_state_dict(norm, saved, strict=True)
    torch.save(nn.ModuleDict(dict(module=nn.ModuleDict(dict(teacher=soft)))).state_dict(), path)
    with pytest.warns(UserWarning, match=told):
        load_pretrained(norm.backbone, str(path), prefix='teacher.backbone')


@pytest.mark.parametrize(
    'lie',
    [3, {'': 3}, {'': {'version': 3}}, {3: {}}, {'backbone.stages.0.blocks.0.attn': {'version': 3}},
     {'backbone.stages.0.embed.0.norm': {'version': 'x'}}],
)  # yapf: disable
def test_notes_that_lie_do_no_harm(tmp_path, lie):
    model = nn.ModuleDict(dict(backbone=SOFT(SMALL, out_indices=(0, 1))))
    state = model.state_dict()
    state._metadata = lie
    torch.save(dict(state_dict=state), tmp_path / 'x.pth')
    load_pretrained(model.backbone, str(tmp_path / 'x.pth'))


@pytest.mark.parametrize(
    'attention, options',
    [
        ('SimAAttention', dict(p=2)),
        ('SimAClassAttention', dict(p=2)),
        ('GaussianAttention', dict(normalise='mean')),
        ('CosFormerAttention', dict(reweight=True)),
    ],
)
def test_weights_of_another_kind_are_told(attention, options):
    """Names and shapes are the same."""
    site, ((name, value),) = Site(16, 2, (4, 4)), options.items()
    ablation, published = (build_attention(dict(type=attention, **one), site, True) for one in (options, {}))
    with pytest.warns(UserWarning, match=rf'trained with {attention}\({name}={value}\) are loaded into {attention}: '):
        published.load_state_dict(ablation.state_dict())
