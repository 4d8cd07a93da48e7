"""What attention contributes, measured by hooks, against the same computed by hand; and the networks without it."""

from contextlib import ExitStack

import pytest
import torch
from torch import nn

from mmsoft import SOFT, SimACvT, SimADeiT, SimAXCiT
from mmsoft.attention import SimAAttention, Site, SOFTAttention, build_attention
from mmsoft.attention.measure import measured_attention, stage_of, without_attention

SOFT_ARCH = dict(embed_dims=[16, 32], num_heads=[1, 2], depths=[1, 1])
XCIT = dict(embed_dims=16, num_heads=2, depth=2, patch_size=8)
NETWORKS = dict(
    soft=lambda: SOFT(SOFT_ARCH, out_indices=(0, 1)),
    deit=lambda: SimADeiT(dict(embed_dims=16, num_heads=2, depth=2), out_indices=(1,), img_size=32),
    xcit=lambda: SimAXCiT(XCIT, (1,)),
    cvt=lambda: SimACvT(dict(embed_dims=[16, 16, 16], num_heads=[1, 1, 1], depths=[1, 1, 1])),
)


@pytest.fixture(params=NETWORKS)
def network(request):
    network = NETWORKS[request.param]().eval()
    network.init_weights()
    return network


def test_share_of_soft_is_that_of_attention_beside_the_convolution():
    network = SOFT(SOFT_ARCH, out_indices=(0,)).eval()
    network.init_weights()
    attention, seen = network.stages[0].blocks[0].attn, {}
    attention.register_forward_hook(lambda module, args, out: seen.update(x=args[0], hw=args[1]))
    with torch.no_grad(), measured_attention(network) as contributions:
        network(torch.randn(2, 3, 64, 64))
    one = contributions['stages.0.blocks.0.attn']

    x, hw = seen['x'], seen['hw']
    q, v = attention.query(x) * attention.scale, attention.value(x)
    q_map = q.transpose(1, 2).unflatten(2, hw)
    tokens = attention.bottleneck(q_map)
    out = attention.product(q[:, None], tokens[:, None], v[:, None], attention.iterations).squeeze(1)
    local = nn.functional.conv2d(
        v.transpose(1, 2).unflatten(2, hw), attention.conv.weight.expand(16, -1, -1, -1), padding=4, groups=16
    )
    assert one.share == pytest.approx((out.norm() / local.norm()).item(), rel=1e-4)
    assert one.gain == pytest.approx((out.norm() / v.norm()).item(), rel=1e-4)
    assert one.exponent == pytest.approx((torch.cdist(q, tokens) ** 2 / 2).mean().item(), rel=1e-4)


def test_share_of_others_is_that_of_attention_beside_the_input_of_the_block():
    network = SimAXCiT(XCIT, (1,)).eval()
    block, seen = network.blocks[1], {}
    block.register_forward_hook(lambda module, args, out: seen.update(x=args[0], hw=args[1]))
    with torch.no_grad(), measured_attention(network) as contributions:
        block.gamma1 = nn.Parameter(torch.full((16,), 0.5))  # FSDP gathers it in each forward pass
        network(torch.randn(2, 3, 64, 64))
    out = 0.5 * block.attn(block.norm1(seen['x']), seen['hw'])
    share = contributions['blocks.1.attn'].share
    assert share == pytest.approx((out.norm() / seen['x'].norm()).item(), rel=1e-4)


@pytest.mark.parametrize('network', ['deit'], indirect=True)
@torch.no_grad()
def test_share_without_a_layer_scale(network):
    block, seen = network.blocks[1], {}
    block.register_forward_hook(lambda module, args, out: seen.update(x=args[0], hw=args[1]))
    with measured_attention(network) as contributions:
        network(torch.randn(2, 3, 64, 64))
    out = block.attn(block.norm1(seen['x']), seen['hw'])
    assert contributions['blocks.1.attn'].share == pytest.approx((out.norm() / seen['x'].norm()).item(), rel=1e-4)


@pytest.mark.parametrize('network', ['deit', 'cvt'], indirect=True)
@torch.no_grad()
def test_gain_of_others_is_that_over_the_values(network):
    name, attention = next((name, one) for name, one in network.named_modules() if isinstance(one, SimAAttention))
    attention.register_forward_hook(lambda module, args, out: seen.update(x=args[0], hw=args[1]))
    seen = {}
    with measured_attention(network) as contributions:
        network(torch.randn(2, 3, 64, 64))
    q, k, v = attention.split_heads(seen['x'], seen['hw'])
    wanted = (attention.product(q, k, v).norm() / v.norm()).item()
    assert contributions[name].gain == pytest.approx(wanted, rel=1e-4)


@torch.no_grad()
def test_exponent_is_the_mean_of_all_passes():
    network, images = NETWORKS['soft']().eval(), torch.randn(2, 1, 3, 64, 64) * torch.tensor([1, 9]).view(2, 1, 1, 1, 1)
    found = []
    for passes in (images[:1], images[1:], images):
        with measured_attention(network) as contributions:
            for image in passes:
                network(image)
        found.append(contributions['stages.0.blocks.0.attn'].exponent)
    assert found[0] != pytest.approx(found[1], rel=0.01) and found[2] == pytest.approx(sum(found[:2]) / 2)


def test_measuring_leaves_the_network_as_it_was(network):
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        before = network(x)
        with measured_attention(network) as contributions:
            during = network(x)
        counted = {name: one.share for name, one in contributions.items()}
        after = network(x)
    for a, b, c in zip(before, during, after):
        assert torch.equal(a, b) and torch.equal(a, c)
    assert counted == {name: one.share for name, one in contributions.items()}  # nothing is added afterwards
    assert all(share > 0 for share in counted.values())


@torch.no_grad()
def test_without_attention_an_image_moves_nothing_far_away(network):
    """One changed corner reaches the other one through attention alone."""
    x = torch.randn(1, 3, 192, 192)
    other = x.clone()
    other[..., :16, :16] += 5

    def moved():
        return max((a - b)[..., -1, -1].abs().max().item() for a, b in zip(network(x)[:1], network(other)[:1]))

    assert moved() > 0
    with without_attention(network):
        assert moved() == 0
    assert moved() > 0


@pytest.mark.parametrize('measured_first', [False, True])
def test_stages_are_chosen(network, measured_first):
    names = [name for name, module in network.named_modules() if hasattr(module, 'attended')]
    with torch.no_grad(), ExitStack() as stack:
        if not measured_first:
            stack.enter_context(without_attention(network, [0]))
        contributions = stack.enter_context(measured_attention(network))
        if measured_first:
            stack.enter_context(without_attention(network, [0]))
        network(torch.randn(1, 3, 64, 64))
    assert [contributions[name].gain == 0 for name in names] == [stage_of(name) == 0 for name in names]
    names = [name for name in names if isinstance(network.get_submodule(name), SOFTAttention)]
    assert [contributions[name].share == 0 for name in names] == [stage_of(name) == 0 for name in names]


def test_says_how_many_are_taken_away(network):
    """Class attention stays, and so does softmax beside others."""
    with without_attention(network) as count:
        assert count == sum(hasattr(module, 'attended') for module in network.modules())
    with without_attention(network, [9]) as count:
        assert count == 0
    with without_attention(nn.Linear(1, 1)) as count:
        assert count == 0
    soft = SOFT(dict(embed_dims=[16] * 4, num_heads=[1] * 4, depths=[1] * 4))
    with without_attention(soft) as count:
        assert count == 3
    with without_attention(soft, [3]) as count:
        assert count == 1
    with without_attention(SimAXCiT(XCIT, (1,), out_type='cls_token')) as count:
        assert count == 2


def test_gamma_begins_where_it_is_told_and_nothing_else_changes():
    networks = []
    for gamma in (1.0, 0.3):
        torch.manual_seed(0)
        networks.append(SOFT(SOFT_ARCH, out_indices=(1,), attention=dict(type='SOFTAttention', initial_gamma=gamma)))
        networks[-1].init_weights()
    published, wide = (network.state_dict() for network in networks)
    changed = [name for name in published if not torch.equal(published[name], wide[name])]
    assert changed == [f'stages.{i}.blocks.0.attn.bottleneck.norm.weight' for i in (0, 1)]
    assert all((wide[name] == 0.3).all() for name in changed)


@pytest.mark.parametrize('masked', [False, True])
def test_reference_tokens_keep_the_scale_of_the_class_token(masked):
    """Its own token is none of them; one image with padding gives the same as without."""
    torch.manual_seed(0)
    site = Site(16, 2, (4, 4))
    patches = build_attention(dict(type='SimAAttention', reference_tokens=16), site)
    scaled = build_attention(patches.class_attention(), site, class_token=True)
    plain = build_attention(dict(type='SimAClassAttention'), site, class_token=True)
    q, k, v = torch.randn(3, 1, 2, 65, 8).unbind()
    padding, mask = torch.randn(1, 2, 3, 8), None
    wanted = 4 * plain.product(q, k, v)
    if masked:
        q, k, v = (torch.cat([t, padding], 2) for t in (q, k, v))
        mask = torch.arange(68)[None] < 65
    torch.testing.assert_close(scaled.product(q, k, v, mask), wanted)
    same = [t[:, :, :17] for t in (q, k, v)]  # 16 and the class token
    torch.testing.assert_close(scaled.product(*same), plain.product(*same))


def test_reference_tokens_and_masks_in_float64():
    scaled = SimAAttention(Site(16, 2, (4, 4)), reference_tokens=7)
    q, k, v = torch.randn(3, 1, 2, 16, 8, dtype=torch.float64).unbind()
    masked = scaled.product(q, k, v, torch.ones(1, 16, dtype=torch.bool))
    torch.testing.assert_close(masked, scaled.product(q, k, v), rtol=1e-14, atol=0)


def test_reference_tokens_are_queries_where_keys_are_fewer():
    """As in CvT, whose keys and values have a stride: twice the queries, each twice, halve the output."""
    torch.manual_seed(0)
    plain, scaled = SimAAttention(Site(16, 2, (4, 4))), SimAAttention(Site(16, 2, (4, 4)), reference_tokens=16)
    q, (k, v) = torch.randn(1, 2, 16, 8), torch.randn(2, 1, 2, 4, 8).unbind()
    torch.testing.assert_close(scaled.product(q, k, v), plain.product(q, k, v))
    larger = [t.repeat(1, 1, 2, 1) for t in (q, k, v)]
    torch.testing.assert_close(scaled.product(*larger)[:, :, :16], plain.product(q, k, v))


@pytest.mark.parametrize('masked', [False, True])
def test_reference_tokens_keep_the_scale_of_sima(masked):
    """Four times the tokens, each four times: without it a quarter comes out."""
    torch.manual_seed(0)
    site = Site(16, 2, (4, 4))
    plain, scaled = SimAAttention(site), SimAAttention(site, reference_tokens=16)
    scaled.load_state_dict(plain.state_dict())
    q, k, v = torch.randn(3, 2, 2, 16, 8).unbind()
    larger = [t.repeat(1, 1, 4, 1) for t in (q, k, v)]
    mask = torch.ones(2, 64, dtype=torch.bool) if masked else None
    if masked:  # the fifth copy is padding
        larger = [torch.cat([t, torch.randn(2, 2, 16, 8)], 2) for t in larger]
        mask = torch.cat([mask, torch.zeros(2, 16, dtype=torch.bool)], 1)
    small = plain.product(q, k, v)
    torch.testing.assert_close(scaled.product(q, k, v), small)
    torch.testing.assert_close(plain.product(*larger, mask)[:, :, :16], small / 4)
    torch.testing.assert_close(scaled.product(*larger, mask)[:, :, :16], small)
    assert all(
        scaled.product(*(t.to(dtype) for t in larger), mask).dtype == dtype for dtype in (torch.half, torch.double)
    )
