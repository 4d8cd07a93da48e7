"""Published names to ours and back."""

import pytest
import torch
from mmengine.registry import MODELS as MMENGINE_MODELS
from published import NETWORKS, published_state_dict

from mmsoft.checkpoint import FAMILIES, CheckpointError, to_mmsoft, to_published

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
    assert identical(to_published(ours)[1], published)
    assert identical(family.to_mmsoft(family.to_published(ours)), ours)
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


def test_unknown_names_pass_through():
    published = dict(published_state_dict('soft_tiny'), other=torch.ones(2))
    _, ours = to_mmsoft(published)
    assert ours['other'] is published['other'] and 'other' in to_published(ours)[1]


def test_half_of_a_fused_tensor_is_damage():
    published = published_state_dict('soft_tiny')
    del published['block4.0.attn.kv.weight']
    with pytest.raises(CheckpointError, match='the 2 tensors that make .*qkv.weight are not all in the checkpoint'):
        to_mmsoft(published)
