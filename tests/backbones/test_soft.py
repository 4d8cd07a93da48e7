"""What SOFT promises besides the published numbers (those are in test_soft_parity.py)."""

import pytest
import torch
from mmengine.utils.dl_utils.parrots_wrapper import _BatchNorm

from mmsoft.backbones import SOFT
from mmsoft.layers import blocks
from mmsoft.ops import inverse

NANO = dict(embed_dims=[32, 64, 64, 64], num_heads=[1, 2, 2, 2], depths=[1, 1, 1, 1])
STRIDES = (4, 8, 16, 32)


def soft(**options):
    return dict(attention=dict(type='SOFTAttention', **options))


# Every option that changes what is computed.
OPTIONS = {
    'soft': dict(attention_norm=False),
    'soft_norm': dict(attention_norm=True),
    'all_stages_soft': dict(attention=[dict(type='SOFTAttention')] * 4),
    'avg_pool': soft(sampling='avg_pool'),
    'random': soft(sampling='random'),
    'biased': soft(sampling='biased'),
    'fixed': soft(bottleneck_size=7),
    'fixed_6': soft(bottleneck_size=6),
    'newton_5': soft(newton_iterations=5),
    'ratios': dict(arch=dict(NANO, sampling_ratios=(4, 2, 1, 1))),
    'grid_of_64': dict(img_size=64),
}
every_option = pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)
both_norms = pytest.mark.parametrize('attention_norm', [False, True], ids=['soft', 'soft_norm'])


def build(**options):
    torch.manual_seed(0)
    model = SOFT(**{'arch': NANO, **options})
    model.init_weights()
    for name, parameter in model.named_parameters():
        if 'pos_embed' in name or 'query' in name:
            torch.nn.init.normal_(parameter, std=0.3)  # otherwise all tokens resemble each other
    return model


def images(batch=2, height=64, width=96, seed=0):
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(seed))


def gradients(model, x):
    model.zero_grad()
    torch.manual_seed(0)
    sum((out * torch.randn_like(out)).sum() for out in model(x)).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_close(got, want, tolerance=1e-4):
    assert len(got) == len(want)
    for a, b in zip(got, want):
        assert a.shape == b.shape and a.isfinite().all()
        assert (a - b).abs().max() <= tolerance * max(1, b.abs().max())


@both_norms
@pytest.mark.parametrize(
    'hw', [(32, 32), (33, 47), (64, 200), (97, 32), (75, 131), (224, 224)], ids='{0[0]}x{0[1]}'.format
)
def test_any_input_size(hw, attention_norm):
    with torch.no_grad():
        outs = build(attention_norm=attention_norm).eval()(images(1, *hw))
    assert all(out.isfinite().all() for out in outs)
    assert [out.shape for out in outs] == [
        (1, dims, -(-hw[0] // stride), -(-hw[1] // stride)) for dims, stride in zip(NANO['embed_dims'], STRIDES)
    ]


def test_the_last_pixel_reaches_the_first_token():
    model, x = build(out_indices=(0,)).eval(), images(1, 75, 131)
    changed = x.clone()
    changed[..., -1, -1] += 1
    with torch.no_grad():
        assert not torch.equal(model(x)[0][..., 0, 0], model(changed)[0][..., 0, 0])


@pytest.mark.parametrize('out_indices', [(0,), (1, 2), (0, 3), (2,), (-1,), 1], ids=str)
def test_some_outputs(out_indices):
    whole, model, x = build().eval(), build(out_indices=out_indices).eval(), images()
    model.load_state_dict({name: whole.state_dict()[name] for name in model.state_dict()})
    wanted = [out_indices] if isinstance(out_indices, int) else out_indices
    with torch.no_grad():
        maps = whole(x)
        assert_close(model(x), [maps[i] for i in wanted], tolerance=0)
    assert len(model.stages) == max(i % 4 for i in wanted) + 1


@pytest.mark.parametrize('stages', [1, 2, 3, 4])
def test_fewer_stages(stages):
    model = build(arch={name: value[:stages] for name, value in NANO.items()}, out_indices=(0, -1))
    assert [out.shape[1] for out in model(images())] == [NANO['embed_dims'][i] for i in sorted({0, stages - 1})]


def test_class_token():
    x = images()
    with torch.no_grad():
        *_, last = build().eval()(x)
        *_, (same, cls) = build(with_cls_token=True).eval()(x)
        (vector,) = build(out_type='cls_token').eval()(x)
    assert_close([same, vector], [last, cls], tolerance=0)
    assert cls.shape == (2, 64) and build().norm.eps == 1e-6


@pytest.mark.parametrize('frozen', [-1, 0, 1, 2, 3, 4])
def test_frozen_stages(frozen):
    model = build(frozen_stages=frozen)

    def should_train(name):
        if name.startswith('norm'):
            return frozen < 4
        stage = int(name.split('.')[1])
        return stage >= frozen and not (frozen == 0 and name.startswith(('stages.0.embed', 'stages.0.pos_embed')))

    assert {name for name, p in model.named_parameters() if p.requires_grad} == {
        name for name, _ in model.named_parameters() if should_train(name)
    }
    model.train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    if frozen < 4:
        assert set(gradients(model, images())) == {name for name, p in model.named_parameters() if p.requires_grad}
    for name, buffer in model.named_buffers():
        if name.endswith('running_mean'):
            assert torch.equal(buffer, before[name]) != should_train(name)


@pytest.mark.parametrize('name', ['BN', 'SyncBN'])
def test_norm_eval(name):
    model = build(norm_eval=True, norm_cfg=dict(type=name)).train()
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    assert not any(norm.training for norm in norms) and model.stages[0].blocks[0].training
    assert [type(norm).__name__ for norm in norms] == [dict(BN='BatchNorm2d', SyncBN='SyncBatchNorm')[name]] * 6


@pytest.mark.parametrize('frozen', [-1, 0, 2])
@pytest.mark.parametrize('drop_rate', [0.0, 0.3])
@pytest.mark.parametrize('with_cp', [True, 'ffn'])
def test_checkpointing_keeps_the_gradients(with_cp, drop_rate, frozen, monkeypatch):
    monkeypatch.setattr(blocks, 'RECOMPUTED_ELEMENTS', 4096)  # several runs
    options = dict(drop_rate=drop_rate, drop_path_rate=drop_rate, frozen_stages=frozen)
    plain, recomputed = (gradients(build(with_cp=which, **options).train(), images()) for which in (False, with_cp))
    assert plain.keys() == recomputed.keys()
    assert_close(recomputed.values(), plain.values(), tolerance=1e-5)


@pytest.mark.parametrize('rates', [dict(drop_rate=0.5), dict(drop_path_rate=0.9)], ids=str)
def test_dropout_and_stochastic_depth(rates):
    model, x = build(**rates), images()
    with torch.no_grad():
        model.train().apply(lambda module: module.eval() if isinstance(module, _BatchNorm) else None)
        assert not torch.equal(model(x)[-1], model(x)[-1])
        assert_close(model.eval()(x), build().eval()(x), tolerance=0)


@pytest.mark.parametrize('drop_rate', [0, 0.1])
def test_drop_path_is_the_published_one(drop_rate):
    """Linear over all blocks; what the published code calls so is dropout in SOFT layers and real in the last stage."""
    stages = SOFT('tiny', drop_rate=drop_rate, drop_path_rate=0.2).stages
    drops = [block.drop for stage in stages for block in stage.blocks]
    rates = torch.linspace(0, 0.2, 8)
    assert [drop.p for drop in drops[:6]] == pytest.approx((1 - (1 - drop_rate) * (1 - rates[:6])).tolist())
    last = [(drop_rate, pytest.approx(rate)) for rate in rates[6:].tolist()]
    assert [(drop[0].p, drop[1].drop_prob) for drop in drops[6:]] == last
    shorter = SOFT('tiny', out_indices=(1,), drop_path_rate=0.2).stages[1].blocks  # is the same up to there
    assert [block.drop.p for block in shorter] == pytest.approx(rates[1:3].tolist())


def test_initialisation():
    model = SOFT('tiny', out_indices=(2,))
    model.init_weights()
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d) and module.groups == 1 and module.out_channels > 16:
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)
        if isinstance(module, torch.nn.Linear):
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.1) and not module.bias.any()


@both_norms
def test_bfloat16_autocast_is_close_to_float32(attention_norm):
    model, x = build(attention_norm=attention_norm).train(), images()
    want, want_grads = model(x), gradients(model, x)
    with torch.autocast('cpu', torch.bfloat16):
        got = model(x)
    torch.manual_seed(0)
    model.zero_grad()
    sum((out * torch.randn_like(out.float())).sum() for out in got).backward()
    for a, b in zip(got, want):
        assert a.isfinite().all() and (a.float() - b).norm() < 0.05 * b.norm()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all()
    got_grad, want_grad = (
        torch.cat([g.flatten() for g in grads]) for grads in ([p.grad for p in model.parameters()], want_grads.values())
    )
    assert torch.cosine_similarity(got_grad, want_grad, dim=0) > 0.95


@both_norms
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float64], ids=['bfloat16', 'float64'])
def test_other_dtypes(dtype, attention_norm):
    model, x = build(attention_norm=attention_norm).eval(), images()
    with torch.no_grad():
        want = model(x)
        got = model.to(dtype)(x.to(dtype))
    for a, b in zip(got, want):
        assert a.dtype == dtype and (a.float() - b).norm() < (0.1 if dtype == torch.bfloat16 else 1e-4) * b.norm()


@every_option
def test_every_parameter_gets_a_gradient(options):
    model = build(**options).train()
    grads = gradients(model, images())
    assert set(grads) == {name for name, _ in model.named_parameters()}
    for name, grad in grads.items():
        assert grad.isfinite().all(), name
        assert (grad != 0).any(), name


@every_option
def test_an_image_does_not_depend_on_the_rest_of_its_batch(options):
    model = build(**options).eval().double()
    x = torch.cat([images(2), torch.zeros(1, 3, 64, 96), 10 * images(1, seed=1), torch.ones(1, 3, 64, 96)]).double()
    with torch.no_grad():
        together = model(x)
        for i in range(len(x)):
            assert_close(model(x[i : i + 1]), [out[i : i + 1] for out in together], tolerance=1e-8)


@both_norms
def test_both_routes_of_the_inverse_agree(attention_norm, monkeypatch):
    x = images(2, 160, 96)
    with torch.no_grad():
        want = build(attention_norm=attention_norm).eval().double()(x.double())
        monkeypatch.setattr(inverse, '_FEW_TOKENS', 0)
        got = build(attention_norm=attention_norm).eval()(x)
    assert_close(got, want, tolerance=1e-3)


@pytest.mark.parametrize('options', [soft(bottleneck_size=7), dict(with_cp=True)], ids=str)
def test_options_share_weights(options):
    assert build(**options).state_dict().keys() == build().state_dict().keys()


def test_fixed_bottleneck_is_the_published_one_at_224():
    x = images(1, 224, 224)
    with torch.no_grad():
        assert_close(build(**soft(bottleneck_size=7)).eval()(x), build().eval()(x), tolerance=1e-5)


def test_memory_format_does_not_matter():
    model, x = build().eval(), images()
    with torch.no_grad():
        assert_close(model(x.to(memory_format=torch.channels_last)), model(x))


def test_layer_depths_run_from_the_stem_to_the_head():
    model = SOFT('tiny')
    names = [*(f'backbone.{name}' for name, _ in model.named_parameters()), 'head.fc.weight']
    depths, counts = zip(*map(model.get_layer_depth, names))
    assert set(counts) == {sum(SOFT.arch_settings['tiny']['depths']) + 2}
    assert set(depths) == set(range(counts[0])) and depths[-1] == counts[0] - 1
    assert model.get_layer_depth('backbone.stages.0.embed.0.conv.weight')[0] == 0
    assert model.get_layer_depth('backbone.stages.2.blocks.1.norm1.weight')[0] == 5


@pytest.mark.parametrize(
    'options, words',
    [
        (dict(arch='gigantic'), 'huge'),
        (dict(arch=dict(depths=[1])), 'embed_dims'),
        (dict(arch=dict(NANO, num_heads=[1])), 'num_heads'),
        (dict(arch=dict(NANO, num_heads=2)), r'num_heads of arch must be like \[2, 4, 10, 16\]; got 2'),
        (dict(arch=dict(NANO, depths=[1, 1, 0, 1])), r'depths of arch must be like .*; got \[1, 1, 0, 1\]'),
        (
            dict(arch=dict(NANO, sampling_ratios=(8, 4, 2, 0))),
            r'sampling_ratios of arch must be like .*; got \(8, 4, 2, 0\)',
        ),
        (dict(arch=dict(NANO, sampling_ratios=[8, 4])), 'each of them in .*sampling_ratios'),
        (dict(arch=dict(NANO, embed_dims=[32] * 5)), 'each of them in .*embed_dims'),
        (dict(arch=dict(NANO, num_heads=[3, 2, 2, 2])), '3 heads'),
        (dict(arch=dict(NANO, kernel_sizes=[9, 4, 3, 3])), 'kernel sizes must be odd; got 4'),
        (dict(out_indices=(0, 4)), 'out_indices'),
        (dict(out_indices=()), 'out_indices'),
        (dict(out_type='logits'), 'out_type'),
        (soft(sampling='magic'), 'sampling'),
        (soft(newton_iterations=0), 'newton_iterations'),
        (soft(bottleneck_size=0), 'bottleneck_size'),
        (dict(frozen_stages=5), 'frozen_stages'),
    ],
    ids=str,
)
def test_invalid_arguments(options, words):
    with pytest.raises(ValueError, match=words):
        SOFT(**{'arch': NANO, **options})


@torch.no_grad()
def test_an_averaged_teacher_in_evaluation_is_up_to_date():
    """Averaged through ``.data``, which leaves no trace, and called at one size without ``eval()`` in between."""
    teacher, student, x = build().eval(), build().eval(), images()
    for parameter in student.parameters():
        parameter.normal_(std=0.3)
    for _ in range(3):
        teacher(x)
        for mine, theirs in zip(teacher.parameters(), student.parameters()):
            mine.data.mul_(0.5).add_(theirs.data, alpha=0.5)
    fresh = build().eval()
    fresh.load_state_dict(teacher.state_dict())
    assert_close(teacher(x), fresh(x), tolerance=0)


@pytest.mark.parametrize(
    'options, words',
    [
        (dict(arch={name: value[:2] for name, value in NANO.items()}, out_type='cls_token'), 'fourth stage'),
        (
            dict(arch={name: value[:3] for name, value in NANO.items()}, out_indices=2, with_cls_token=True),
            'fourth stage',
        ),
        (dict(out_indices=(0, 2), with_cls_token=True), 'needs the last output, 3'),
        (dict(with_cp='fnn'), 'with_cp must be one of False, True, ffn; got .fnn.'),
        (dict(arch=dict(NANO, depth=[1])), '.sampling_ratios, kernel_sizes may be missing.; got'),
    ],
    ids=str,
)
def test_class_tokens_that_do_not_exist(options, words):
    with pytest.raises(ValueError, match=words):
        build(**options)


@pytest.mark.parametrize('options', [dict(), soft(bottleneck_size=3)], ids=['ratio', 'fixed'])
def test_memory_that_recomputing_blocks_frees(options):
    """Bytes that the graph keeps for the backward pass of one stage with many bottleneck tokens."""

    def kept(with_cp):
        model = build(arch=dict(embed_dims=[32], num_heads=[1], depths=[6]), out_indices=0, with_cp=with_cp, **options)
        storages = {}

        def pack(tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        x = images(1, 160, 160)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            (out,) = model.train()(x)
        own = sum(p.untyped_storage().nbytes() for p in model.parameters())
        out.sum().backward()
        return sum(storages.values()) - own

    one_block = 1600 * 32 * 4 * 4  # of the FFN's intermediate alone, before or behind the activation
    everything, without_ffn, least = map(kept, (False, 'ffn', True))
    assert without_ffn < everything - 6 * 2 * one_block * 0.99
    assert least < without_ffn


@pytest.mark.parametrize('options', [dict(), soft(bottleneck_size=3)], ids=['ratio', 'fixed'])
def test_deterministic_algorithms(options):
    """What has no deterministic gradient on a GPU is not used at all: resizing and pooling are products."""
    model = build(**options).train()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        gradients(model, images(1, 96, 160))
    names = {event.key for event in profile.key_averages()}
    assert not {name for name in names if ('upsample' in name and 'backward' in name) or 'adaptive' in name}


def test_a_copy_is_a_copy():
    import copy
    import pickle

    model, x = build().eval(), images()
    with torch.no_grad():
        want = model(x)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert_close(twin(x), want, tolerance=0)


def test_random_tokens_on_another_default_device():
    model, x = build(attention=dict(sampling='random')).eval(), torch.rand(1, 3, 64, 64)
    try:
        torch.set_default_device('meta')
        assert model(x)[0].device.type == 'cpu'
    finally:
        torch.set_default_device(None)
    with pytest.raises(ValueError, match='random bottleneck tokens are not exported'):
        torch.jit.trace(model, x, check_trace=False)
