"""What every mmsoft backbone has in common: outputs, freezing, initialisation and published checkpoints."""
from typing import Iterable, List, Optional, Sequence, Union

from mmengine.model import BaseModule
from mmengine.utils.dl_utils.parrots_wrapper import _BatchNorm
from torch import nn

from mmsoft.checkpoint import convert_classifier_checkpoint, load_pretrained

OUT_TYPES = ('featmap', 'cls_token')


class BaseBackbone(BaseModule):
    """Base class of the backbones.

    A subclass sets :attr:`published` and defines :meth:`get_layer_depth` and :meth:`_frozen_modules`.

    Args:
        num_outputs (int): Number of taps that ``out_indices`` may name.
        out_indices (Sequence[int]): Taps to return; negative ones count from the last.
        out_type (str): ``'featmap'`` returns a tuple of maps for detectors and segmenters, ``'cls_token'`` a tuple
            of one (B, C) tensor for classifiers.
        with_cls_token (bool): With ``'featmap'``, turn the last output into a pair (map, class token).
        frozen_stages (int): Stages without training, see the subclass. -1 freezes nothing.
        norm_eval (bool): Keep BatchNorm in eval mode while training.
        with_cp (bool): Recompute each block in the backward pass to save memory.
        init_cfg (dict or list[dict], optional): ``dict(type='Pretrained', checkpoint=FILE)`` takes a published file
            as it is, one of ours or one of mmengine's.

    Raises:
        ValueError: If ``out_indices`` or ``out_type`` names something that does not exist.
    """

    #: Name of the family in :mod:`mmsoft.checkpoint`.
    published: str = ''

    def __init__(self,
                 num_outputs: int,
                 out_indices: Sequence[int],
                 out_type: str = 'featmap',
                 with_cls_token: bool = False,
                 frozen_stages: int = -1,
                 norm_eval: bool = False,
                 with_cp: bool = False,
                 init_cfg: Optional[Union[dict, List[dict]]] = None) -> None:
        super().__init__(init_cfg)
        if out_type not in OUT_TYPES:
            raise ValueError(f'out_type must be one of {OUT_TYPES}, got {out_type!r}')
        out_indices = (out_indices, ) if isinstance(out_indices, int) else tuple(out_indices)
        if not out_indices or not all(-num_outputs <= i < num_outputs for i in out_indices):
            raise ValueError(f'out_indices must lie between 0 and {num_outputs - 1}, got {out_indices}')
        self.out_indices = tuple(sorted({i % num_outputs for i in out_indices}))
        self.out_type = out_type
        self.with_cls_token = with_cls_token
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.with_cp = with_cp

    def init_weights(self) -> None:
        """Initialises every layer, then loads the pretrained checkpoint over it if ``init_cfg`` names one."""
        given = self.init_cfg if isinstance(self.init_cfg, list) else [self.init_cfg] if self.init_cfg else []
        pretrained = [cfg for cfg in given if cfg['type'] in ('Pretrained', 'PretrainedInit')]
        self.init_cfg = [cfg for cfg in given if cfg not in pretrained] or self.default_init_cfg()
        super().init_weights()
        self.init_cfg = given or None
        for cfg in pretrained:
            load_pretrained(self, cfg['checkpoint'], prefix=cfg.get('prefix'))

    def default_init_cfg(self) -> List[dict]:
        """Initialisation of the published networks."""
        return [
            dict(type='TruncNormal', layer='Linear', std=0.02, bias=0),
            dict(type='Kaiming', layer='Conv2d', mode='fan_out', nonlinearity='relu', bias=0),
            dict(type='Constant', layer=['LayerNorm', 'BatchNorm2d'], val=1, bias=0),
        ]

    def train(self, mode: bool = True):
        """Sets the mode; frozen stages and, with ``norm_eval``, BatchNorm stay in eval mode."""
        super().train(mode)
        self.freeze()
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def freeze(self) -> None:
        """Freezes ``frozen_stages``. To be called once all layers exist: optimizers and distributed wrappers look then."""
        for module in self._frozen_modules():
            module.requires_grad_(False)
            if isinstance(module, nn.Module):
                module.eval()

    def _frozen_modules(self) -> Iterable[Union[nn.Module, nn.Parameter]]:
        """Modules and parameters that ``frozen_stages`` excludes from training."""
        raise NotImplementedError

    def get_layer_depth(self, param_name: str, prefix: str = 'backbone.'):
        """Layer of a parameter, for layer-wise learning-rate decay (mmpretrain's convention).

        Args:
            param_name (str): Name of the parameter in the whole model.
            prefix (str): Name of this backbone in the whole model. Defaults to ``'backbone.'``.

        Returns:
            tuple[int, int]: The layer and the number of layers; the heads are the last one.
        """
        raise NotImplementedError

    def _checkpoint_filter(self, state_dict: dict, prefix: str, *args) -> None:
        """Lets mmpretrain's classifiers load published files, head included (called by ``ImageClassifier``)."""
        convert_classifier_checkpoint(self, state_dict)
