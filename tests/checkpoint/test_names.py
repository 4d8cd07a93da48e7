"""Published names to ours and back."""

import pytest
import torch
from mmengine.registry import MODELS as MMENGINE_MODELS
from published import NETWORKS, published_state_dict, to_published

from mmsoft.checkpoint import CheckpointError
from mmsoft.checkpoint.names import FAMILIES, to_mmsoft

EACH = pytest.mark.parametrize('name', NETWORKS)


def identical(one, other):
    return set(one) == set(other) and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


@EACH
def test_round_trip_keeps_every_bit(name):
    published = published_state_dict(name)
    family, ours = to_mmsoft(published)
    assert not set(ours) & set(published)
    assert identical(to_published(family.name, ours), published)
    assert identical(to_mmsoft(ours)[1], ours)


@EACH
def test_every_name_is_in_the_backbone_or_the_head(name):
    cfg = NETWORKS[name][0]
    backbone = MMENGINE_MODELS.build(dict(cfg, out_type='cls_token'))
    family, ours = to_mmsoft(published_state_dict(name))
    assert family is FAMILIES[backbone.published]
    assert set(ours) == {f'backbone.{key}' for key in backbone.state_dict()} | {'head.fc.weight', 'head.fc.bias'}


@EACH
@pytest.mark.parametrize('prefix', ['', 'backbone.'])
def test_family_is_told_by_names_of_either_kind(name, prefix):
    published = published_state_dict(name)
    family, ours = to_mmsoft(published)
    assert to_mmsoft({prefix + key: tensor for key, tensor in published.items()})[0] is family
    bare = {key[len('backbone.') :]: tensor for key, tensor in ours.items() if key.startswith('backbone.')}
    assert to_mmsoft({prefix + key: tensor for key, tensor in bare.items()})[0] is family


@pytest.mark.parametrize('family', FAMILIES.values(), ids=FAMILIES)
def test_the_signature_is_enough(family):
    assert to_mmsoft(dict.fromkeys(family.signature, torch.zeros(1)))[0] is family


def test_what_is_not_of_the_backbone_keeps_its_name():
    published = {f'backbone.{name}': tensor for name, tensor in published_state_dict('soft_tiny').items()}
    others = dict.fromkeys(('neck.block1.att.ff1.weight', 'neck.attn.q.weight', 'a.attn.kv.bias'), torch.ones(2))
    _, ours = to_mmsoft({**published, **others})
    assert set(others) < set(ours) and 'backbone.stages.0.blocks.0.ffn.layers.0.0.weight' in ours


@pytest.mark.parametrize('part', ['q', 'kv'])
def test_half_of_a_fused_tensor_is_damage(part):
    published = published_state_dict('soft_tiny')
    del published[f'block4.0.attn.{part}.weight']
    with pytest.raises(CheckpointError, match='^The tensors that make .*qkv.weight are not all in the checkpoint'):
        to_mmsoft(published)


def test_the_order_of_a_file_does_not_matter():
    published = published_state_dict('soft_tiny')
    assert identical(to_mmsoft(dict(reversed(published.items())))[1], to_mmsoft(published)[1])
