"""Layer-wise learning-rate decay for classifiers, detectors and segmenters alike."""

import re

from mmengine.optim import DefaultOptimWrapperConstructor
from torch import nn

from mmsoft.backbones.base import BaseBackbone
from mmsoft.checkpoint.io import WRAPPERS
from mmsoft.registry import OPTIM_WRAPPER_CONSTRUCTORS
from mmsoft.utils import OptionError


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor, with learning rates that decay from the heads down to the stem.

    It calls ``get_layer_depth`` of modules named ``backbone``, and of ours by any name, so it fits any model.
    ``paramwise_cfg`` also takes ``layer_decay_rate`` (float): the factor from a layer to the one before, 1 by default.
    """

    def add_params(self, params: list[dict], module: nn.Module, prefix: str = '', **kwargs) -> None:
        """Adds the parameters of a module to the groups, in place; called once with the model, then with its parts."""
        super().add_params(params, module, prefix, **kwargs)
        if prefix:
            return
        rate = self.paramwise_cfg.get('layer_decay_rate', 1.0)
        names = {parameter: re.sub(WRAPPERS, '', name) for name, parameter in module.named_parameters()}
        backbones = {}
        for name, one in module.named_modules():
            start = re.sub(WRAPPERS, '', f'{name}.').lstrip('.')
            is_backbone = start.endswith(('backbone.', 'backbone.module.')) or isinstance(one, BaseBackbone)
            if is_backbone and hasattr(type(one), 'get_layer_depth'):  # LoRA's wrapper forwards to the one inside
                backbones[start] = one
        if not backbones:
            raise OptionError('layer_decay_rate needs a backbone with get_layer_depth, such as those of mmsoft')
        for group in params:
            name = names[group['params'][0]]
            start = ([start for start in backbones if name.startswith(start)] or [*backbones])[0]
            layer, num_layers = backbones[start].get_layer_depth(name, start)
            group['lr'] = group.get('lr', self.base_lr) * rate ** (num_layers - 1 - layer)
