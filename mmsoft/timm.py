"""The backbones in timm's registry: ``import mmsoft.timm``, then ``timm.create_model('soft_norm_tiny')``.

``soft_*``, ``soft_norm_*`` (tiny … huge), ``sima_xcit_*``, ``sima_deit_*`` and ``sima_cvt_*`` are names for
transformers' ``TimmBackbone`` and segmentation_models_pytorch's ``tu-`` encoders, too.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, Optional, Union

import torch
from mmengine.model import initialize
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model, register_notrace_module
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from mmsoft.backbones import SOFT, SimACvT, SimADeiT, SimAXCiT
from mmsoft.backbones.base import BaseBackbone
from mmsoft.checkpoint import read_checkpoint, select_state_dict
from mmsoft.checkpoint.load import convert_classifier_checkpoint, load_pretrained
from mmsoft.layers.maps import to_tokens
from mmsoft.utils import OptionError, check_choice
from mmsoft.utils.config import dicts, split_pretrained

__all__ = ['TimmModel']
Backbone = type[BaseBackbone]
Indices = Optional[Union[int, Sequence[int]]]
register_notrace_module(BaseBackbone)  # torch.fx cannot follow decisions by the size of a map


class TimmModel(nn.Module):
    """A backbone as a classifier with the methods of timm's models; it loads published files and ours.

    Args:
        backbone (type): Class of the backbone.
        num_classes (int): Classes; 0 for pooled features.
        in_chans (int): Channels of the image.
        global_pool (str): Input of the head: class token (``'token'``), mean of others (``'avg'``) or all (``''``).
        **kwargs: Those of the backbone.
    """

    def __init__(
        self, backbone: Backbone, num_classes: int = 1000, in_chans: int = 3, global_pool: str = 'token', **kwargs
    ) -> None:
        super().__init__()
        self.build_backbone = partial(backbone, **dict(kwargs, in_channels=in_chans))
        self.backbone = self.build_backbone(out_indices=range(backbone.num_units(kwargs['arch'])), with_cls_token=True)
        initialize(self.backbone, self.backbone.default_init_cfg())
        for module in reversed([*self.backbone.modules()]):  # the parts, then the whole, which may load weights
            others, pretrained = split_pretrained(getattr(module, 'init_cfg', None))
            initialize(module, others)
            for cfg in pretrained:  # mmengine would run code in the file
                load_pretrained(module, cfg['checkpoint'], cfg.get('prefix'))
        unit = backbone.unit
        patch = self.backbone.arch.get('patch_size') or getattr(self.backbone, 'patch_size', 4)
        self.feature_info = [  # of the maps that forward_intermediates can return
            dict(num_chs=dims, reduction=patch * 2**i if unit == 'stages' else patch, module=f'backbone.{unit}.{i}')
            for i, dims in enumerate(self.backbone.out_channels)
        ]
        self.num_features = self.head_hidden_size = self.backbone.out_channels[-1]
        self.head = nn.Module()
        self.reset_classifier(num_classes, global_pool)
        self._register_load_state_dict_pre_hook(self._take_published)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: Indices = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
    ) -> Union[list[Tensor], tuple[Tensor, list[Tensor]]]:
        """Maps of several stages or blocks, and the output of :meth:`forward_features`, of images (B, in_chans, H, W).

        Arguments are those of timm's models; ``norm`` and ``stop_early`` do not change the maps. ``output_fmt`` is
        ``'NCHW'``, (B, C, H, W), or ``'NLC'``, tokens (B, H · W, C); OptionError for another. ``indices`` stay those of
        the whole network when it is pruned (KeyError for removed ones); None takes all that are left.
        """
        check_choice('output_fmt', output_fmt, ('NCHW', 'NLC'))
        maps, tokens = self._forward_backbone(x)
        found = dict(zip(self.backbone.out_indices, maps))
        take = found if indices is None else feature_take_indices(len(self.feature_info), indices)[0]
        chosen = [found[i] if output_fmt == 'NCHW' else to_tokens(found[i]) for i in take]
        return chosen if intermediates_only else (tokens, chosen)

    def prune_intermediate_layers(
        self, indices: Indices = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Removes layers that no map of these indices needs, and the head unless it and its map stay; returns these."""
        take, last = feature_take_indices(len(self.feature_info), indices)
        has_head = self.backbone.has_cls_token and not prune_head and last == len(self.feature_info) - 1
        pruned = self.build_backbone(out_indices=take, with_cls_token=has_head, with_cp=self.backbone.with_cp)
        own = self.backbone.state_dict()
        pruned.to(next(self.parameters())).load_state_dict({name: own[name] for name in pruned.state_dict()})
        for name, parameter in pruned.named_parameters():
            parameter.requires_grad = self.backbone.get_parameter(name).requires_grad
        self.backbone = pruned.train(self.training)
        self.num_features = self.head_hidden_size = pruned.out_channels[-1]
        if not has_head:
            self.reset_classifier(0, '')
        return take

    def forward_features(self, x: Tensor) -> Tensor:
        """Maps images (B, in_chans, H, W) to tokens (B, 1 + n, C): the class token, then those of the last map."""
        return self._forward_backbone(x)[1]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Maps tokens (B, 1 + n, C) to scores (B, num_classes), or to the pooled features (B, C)."""
        if self.global_pool:
            x = x[:, 0] if self.global_pool == 'token' else x[:, int(self.backbone.has_cls_token) :].mean(1)
        return x if pre_logits else self.head.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images (B, in_chans, H, W) to scores (B, num_classes)."""
        return self.forward_head(self.forward_features(x))

    def _forward_backbone(self, x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The maps of the backbone, and the tokens of the last map after the class token, if there is one."""
        maps = self.backbone(x)
        if not self.backbone.has_cls_token:
            return maps, to_tokens(maps[-1])
        last, cls = maps[-1]
        return maps[:-1] + (last,), torch.cat([cls[:, None], to_tokens(last)], dim=1)

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.head.fc

    def reset_classifier(self, num_classes: int, global_pool: Optional[str] = None) -> None:
        """Puts a new linear layer in the classifier's place, and changes the pooling if it is given."""
        if global_pool is not None:
            check_choice('global_pool', global_pool, ('avg', '', *['token'] * self.backbone.has_cls_token))
            self.global_pool = global_pool
        self.num_classes = num_classes
        fc = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        self.head.fc = fc.to(next(self.backbone.parameters()))

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recomputes each block in the backward pass to save memory."""
        for module in self.backbone.modules():
            if hasattr(module, 'with_cp'):
                module.with_cp = enable

    def group_matcher(self, coarse: bool = False) -> Union[dict[str, Any], Callable[[str], int]]:
        """The layer of a parameter, by its name, or its stage with ``coarse``; for layer-wise learning rates."""
        if coarse:
            return dict(stem=r'^backbone\.(?:patch_|pos_|cls_token)', blocks=r'^backbone\.(?:stages|blocks)\.(\d+)')
        return lambda name: self.backbone.get_layer_depth(name)[0]

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that are trained without weight decay."""
        return {name for name, _ in self.named_parameters() if name.endswith(('pos_embed', 'cls_token'))}

    def _take_published(self, state_dict: dict, prefix: str, *args) -> None:
        given = set(state_dict)
        own = {name: tensor.shape for name, tensor in self.state_dict().items()}
        if prefix or ('head.fc.weight' in own and given >= set(own)):
            return  # saved by a larger model; for a classifier, torch reports what does not fit
        convert_classifier_checkpoint(self.backbone, state_dict)
        published = given != set(state_dict)  # for others, torch reports names that the backbone lacks
        for name, tensor in list(state_dict.items()):
            is_head = name.startswith('head.') and own.get(name) != tensor.shape
            if is_head or (name not in own and (published or not name.startswith('backbone.'))):
                del state_dict[name]


def _register(name: str, backbone: Backbone, **options) -> None:
    def create(pretrained: bool = False, **kwargs) -> nn.Module:
        kwargs = {**options, **kwargs}
        for part in dicts(kwargs):  # mmengine would import any dotted name, and a Hub's config is untrusted
            kind, loads = part.get('type'), split_pretrained(part.get('override'))[1]
            if loads or (isinstance(kind, str) and not re.fullmatch(r'(mm[a-z]+\.)?\w+', kind)):
                raise OptionError(f'type {kind!r} is no registered name, or its override loads weights.')
        if file := (kwargs.get('pretrained_cfg_overlay') or {}).get('file'):
            weights, _ = select_state_dict(read_checkpoint(file), file)  # timm's reader refuses what trainers save
            kwargs['pretrained_cfg_overlay'] = dict(kwargs['pretrained_cfg_overlay'], file=None, state_dict=weights)
            kwargs['pretrained_filter_fn'] = lambda *_: weights  # timm passes on a copy without _metadata
        depth = backbone.num_units(kwargs['arch'])
        thirds = range(depth) if depth < 6 else (depth // 3 - 1, depth // 2 - 1, 2 * depth // 3 - 1, depth - 1)
        feature_cfg = dict(feature_cls='getter', out_indices=tuple(thirds))
        model = build_model_with_cfg(TimmModel, name, pretrained, backbone=backbone, feature_cfg=feature_cfg, **kwargs)
        for module in model.modules():  # timm would keep the weights there
            getattr(module, 'pretrained_cfg', {}).pop('state_dict', None)
        return model

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f'{backbone.__name__} with {options}; further arguments are those of the backbone.'
    globals()[name] = register_model(create)


_FAMILIES = (  # name, backbone and options of each family, and its first convolution
    ('soft', SOFT, dict(attention_norm=False), 'backbone.stages.0.embed.0.conv'),
    ('soft_norm', SOFT, dict(attention_norm=True), 'backbone.stages.0.embed.0.conv'),
    ('sima_xcit', SimAXCiT, {}, 'backbone.patch_embed.convs.0.conv'),
    ('sima_deit', SimADeiT, {}, 'backbone.patch_embed'),
    ('sima_cvt', SimACvT, {}, 'backbone.stages.0.embed'),
)
default_cfgs: dict[str, Any] = {}
for _family, _backbone, _options, _first_conv in _FAMILIES:  # SOFT sees the centre of 248 x 248, SimA all of 224 x 224
    _cfg = dict(crop_pct=0.9 if _backbone is SOFT else 1.0, first_conv=_first_conv, classifier='head.fc')
    for _arch in _backbone.arch_settings:
        _name = f'{_family}_{_arch.replace("-", "_")}'
        default_cfgs.update(generate_default_cfgs({_name: _cfg}))
        _register(_name, _backbone, arch=_arch, **_options)
