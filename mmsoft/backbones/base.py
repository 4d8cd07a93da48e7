"""Base class of the backbones: sizes, outputs, freezing, layers, published checkpoints."""

from collections.abc import Sequence
from logging import FileHandler
from operator import attrgetter
from typing import Any, Optional, Union

import torch
from mmengine.logging import MMLogger, print_log
from mmengine.model import BaseModule, ModuleList
from mmengine.utils.dl_utils.parrots_wrapper import _BatchNorm
from torch import Tensor, nn

from mmsoft.checkpoint.load import convert_classifier_checkpoint, fit_position, load_pretrained
from mmsoft.layers.blocks import apply_block
from mmsoft.layers.maps import HW, resize_pos_embed, to_tokens
from mmsoft.utils import OptionError, check_choice
from mmsoft.utils.config import split_pretrained

Arch = Union[str, dict]
ImageSize = Union[int, Sequence[int]]


class BaseBackbone(BaseModule):
    """Base class of the backbones, with the arguments that all of them take.

    Output maps are contiguous in NCHW, whatever the memory format inside: mmcv's operators, such as RoIAlign, read them
    by pointer. In evaluation, the result for an image never depends on the content of other images in its batch.

    A subclass sets the attributes below, builds its parts, including ``stages`` or ``blocks``, then calls
    :meth:`freeze`, and returns :meth:`_outputs` from its forward.

    Args:
        arch (str or dict): Sizes, by name or as a dict; see the subclass.
        out_indices (Sequence[int]): Stages or blocks to return, sorted and without duplicates; negative ones count from
            the last. Later ones are not built. ``out_type='cls_token'`` always returns the last.
        out_type (str): ``'featmap'`` returns a tuple of maps, ``'cls_token'``, for classifiers, a tuple of one (B, C)
            tensor, the class token after the final norm.
        with_cls_token (bool): With ``'featmap'``, turn the last output into a pair (map, class token).
        frozen_stages (int): -1 freezes nothing, 0 the :attr:`stem`, k also the first k stages or blocks. The number of
            all of them also freezes the :attr:`tail`.
        norm_eval (bool): Keep BatchNorm in eval mode while training.
        with_cp (bool or str): Recompute each block in the backward pass to save memory; BatchNorm inside it then counts
            each batch twice. ``'ffn'`` recomputes only its FFN.
        drop_rate (float): Elementwise dropout of the residual branches.
        drop_path_rate (float): Stochastic depth; see the subclass for how it is spread over the blocks.
        in_channels (int): Channels of the image.
        init_cfg (dict or list[dict], optional): ``dict(type='Pretrained', checkpoint=FILE)`` loads a published file as
            it is, one of ours or one of mmengine's.
    """

    published: str = ''  #: Name of the family in :mod:`mmsoft.checkpoint`.
    unit: str = 'stages'  #: Unit of ``out_indices``: ``'stages'`` of ``depths`` blocks, or ``depth`` ``'blocks'``.
    arch_settings: dict[str, dict] = {}  #: Sizes by name.
    arch_defaults: dict[str, Any] = {}  #: Sizes that a dict may leave out.
    stem: tuple[str, ...] = ()  #: Names of parts in front of the first block.
    tail: tuple[str, ...] = ('norm',)  #: Names of parts behind the last block.

    def __init__(
        self,
        arch: Arch,
        out_indices: Sequence[int],
        out_type: str = 'featmap',
        with_cls_token: bool = False,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: Union[bool, str] = False,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        in_channels: int = 3,
        init_cfg: Optional[Union[dict, list[dict]]] = None,
    ) -> None:
        super().__init__(init_cfg)
        self.init_cfg: Optional[Union[dict, list[dict]]]
        self.arch = self.read_arch(arch)
        depth = self.num_units(arch)
        self.embed_dims = self.arch['embed_dims']
        check_choice('out_type', out_type, ('featmap', 'cls_token'))
        check_choice('with_cp', with_cp, (False, True, 'ffn'))
        out_indices = (out_indices,) if isinstance(out_indices, int) else tuple(out_indices)
        if out_type == 'cls_token':
            out_indices = (depth - 1,)
        if not out_indices or not all(-depth <= i < depth for i in out_indices):
            raise OptionError(f'out_indices must lie between {-depth} and {depth - 1}; got {out_indices}')
        if not -1 <= frozen_stages <= depth:
            raise OptionError(f'frozen_stages must lie between -1 and {depth}; got {frozen_stages}')
        self.out_indices = tuple(sorted({i % depth for i in out_indices}))
        self.out_type, self.with_cls_token = out_type, with_cls_token
        self.has_cls_token = out_type == 'cls_token' or with_cls_token
        if self.has_cls_token and self.out_indices[-1] != depth - 1:
            raise OptionError(f'with_cls_token needs the last output, {depth - 1}, in out_indices; got {out_indices}')
        self.frozen_stages, self.norm_eval, self.with_cp = frozen_stages, norm_eval, with_cp
        self.drop_rate, self.drop_path_rate, self.in_channels = drop_rate, drop_path_rate, in_channels

    @classmethod
    def num_units(cls, arch: Arch) -> int:
        """Number of stages or blocks of an architecture."""
        sizes = cls.read_arch(arch)
        return sizes['depth'] if cls.unit == 'blocks' else len(sizes['depths'])

    @classmethod
    def read_arch(cls, arch: Arch) -> dict:
        """Sizes by name or as a dict, with the defaults of optional ones; OptionError if one is wrong."""
        if not isinstance(arch, dict):
            arch = str(arch)  # a command line turns '21' into a number
            check_choice('arch', arch.lower(), tuple(cls.arch_settings))
            arch = cls.arch_settings[arch.lower()]
        known = {**next(iter(cls.arch_settings.values()), {}), **cls.arch_defaults}
        if not known.keys() - cls.arch_defaults.keys() <= arch.keys() <= known.keys():
            optional = f' ({", ".join(cls.arch_defaults)} may be missing)' if cls.arch_defaults else ''
            raise OptionError(f'arch as a dict needs {", ".join(known)}{optional}; got {", ".join(arch)}')
        arch = {name: size.tolist() if hasattr(size, 'tolist') else size for name, size in arch.items()}
        for name, size in arch.items():
            listed, several = (isinstance(one, (list, tuple, range)) for one in (size, known[name]))
            sizes, like = size if listed else [size], known[name][0] if several else known[name]
            if listed != several or (type(like) is int and not all(hasattr(n, '__index__') and n > 0 for n in sizes)):
                raise OptionError(f'{name} of arch must be like {known[name]}; got {size}')
        return {**cls.arch_defaults, **arch}

    @property
    def out_channels(self) -> list[int]:
        """Channels of each map that :meth:`forward` returns, as necks want them."""
        dims = self.arch['embed_dims']
        return [dims if isinstance(dims, int) else dims[i] for i in self.out_indices]

    def _outputs(self, maps: Sequence[Tensor], cls: Optional[Tensor] = None) -> tuple:
        """Output of :meth:`forward`, from maps (B, C, H, W) in any memory format and the class token (B, C), if any."""
        if self.out_type == 'cls_token':
            return (cls,)
        maps = [x.contiguous() for x in maps]
        return (*maps[:-1], (maps[-1], cls)) if self.with_cls_token else tuple(maps)

    def init_weights(self) -> None:
        """Initialises every layer, then loads the pretrained checkpoint over it if ``init_cfg`` names one."""
        others, pretrained = split_pretrained(self.init_cfg)
        is_done = self.is_init  # a second call changes nothing in mmengine
        self.init_cfg = others or self.default_init_cfg()
        super().init_weights()
        self.init_cfg = [*others, *pretrained] or None
        for cfg in [] if is_done else pretrained:
            load_pretrained(self, str(cfg.get('checkpoint')), prefix=cfg.get('prefix'))

    def _dump_init_info(self) -> None:
        """mmengine's list of all parameters goes to log files alone: it has hundreds of lines."""
        if any(isinstance(handler, FileHandler) for handler in MMLogger.get_current_instance().handlers):
            super()._dump_init_info()

    def default_init_cfg(self) -> list[dict]:
        """Initialisation of the published networks; SimA's keep torch's default for convolutions."""
        return [dict(type='TruncNormal', layer='Linear', std=0.02, bias=0)]

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
        """Freezes ``frozen_stages``; called once all layers exist, before optimizers and distributed wrappers look."""
        if self.frozen_stages < 0:
            return
        units = getattr(self, self.unit)
        names = self.stem if self.frozen_stages < len(units) else self.stem + self.tail
        for part in [*(attrgetter(name)(self) for name in names), *units[: self.frozen_stages]]:
            if part is not None:
                part.requires_grad_(False)
            if isinstance(part, nn.Module):
                part.eval()

    def _layers(self) -> list[tuple[str, ...]]:
        """Prefixes of parameter names for each layer, from the stem; a stage's embedding belongs to its first block."""
        if self.unit == 'blocks':
            return [self.stem, *((f'blocks.{i}.',) for i in range(self.arch['depth']))]
        layers: list[tuple[str, ...]] = []
        for stage, depth in enumerate(self.arch['depths']):
            embedding = tuple(f'stages.{stage}.{part}' for part in ('embed', 'norm', 'pos_embed', 'cls_token'))
            first, *others = [(f'stages.{stage}.blocks.{block}.',) for block in range(depth)]
            layers += [embedding + first, *others] if stage else [embedding, first, *others]  # the first is the stem
        return layers

    def get_layer_depth(self, param_name: str, prefix: str = 'backbone.') -> tuple[int, int]:
        """Layer of a parameter and the number of layers, for layer-wise learning-rate decay as in mmpretrain.

        The stem is layer 0, each block is a layer, and the final norm and the heads are the last one. ``param_name`` is
        a name in the whole model, in which names of this backbone begin with ``prefix``.
        """
        layers = self._layers()
        name = param_name[len(prefix) :] if param_name.startswith(prefix) else ''
        depth = next((depth for depth, starts in enumerate(layers) if name.startswith(starts)), len(layers))
        return depth, len(layers) + 1

    def _checkpoint_filter(self, state_dict: dict, prefix: str, *args) -> None:
        """Lets mmpretrain's classifiers load published files, head included (called by ``ImageClassifier``)."""
        convert_classifier_checkpoint(self, state_dict)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args) -> None:
        for name, own in self.named_parameters():
            if prefix + name in state_dict:  # may be a position embedding of another image size
                state_dict[prefix + name], grids = fit_position(name, state_dict[prefix + name], own, self.published)
                if grids:
                    print_log(f'{prefix}{name} is resized: {grids}.', 'current')
        super()._load_from_state_dict(state_dict, prefix, *args)


def side_of(img_size: ImageSize) -> int:
    """Side of square images, given as one number or two, as in OpenMMLab and timm; OptionError if the two differ."""
    sides = set(img_size) if isinstance(img_size, Sequence) else {img_size}
    if len(sides) != 1:
        raise OptionError(f'img_size must be one number or two equal ones; got {img_size}')
    return sides.pop()


class Stage(BaseModule):
    """Embedding of a map to C = ``embed_dims`` channels; norm, class token and position embedding if given; blocks.

    ``grid`` has the rows and columns of a learned position embedding, which includes the class token. ``blocks`` are
    called with tokens and the shape of their map; for ``with_cp`` see :func:`apply_block`.
    """

    def __init__(
        self,
        embed: nn.Module,
        embed_dims: int,
        blocks: ModuleList,
        with_cls_token: bool,
        with_cp: Union[bool, str],
        norm: Optional[nn.Module] = None,
        grid: Optional[HW] = None,
    ) -> None:
        super().__init__()
        self.grid, self.with_cp = grid, with_cp
        self.embed = embed
        self.norm = norm
        if grid is not None:
            self.pos_embed = token_parameter(grid[0] * grid[1] + with_cls_token, embed_dims)
        self.cls_token = token_parameter(1, embed_dims) if with_cls_token else None
        self.blocks = blocks

    def forward(self, x: Tensor) -> tuple[Tensor, HW]:
        """Embeds a map and applies the blocks; returns tokens of shape (B, [1 +] H' · W', C), and (H', W')."""
        x = self.embed(x)
        hw = (x.size(2), x.size(3))
        x = to_tokens(x)
        if self.norm is not None:
            x = self.norm(x)
        if self.cls_token is not None:
            x = with_token(self.cls_token, x)
        if self.grid is not None:
            x = x + resize_pos_embed(self.pos_embed, self.grid, hw)
        for block in self.blocks:
            x = apply_block(block, x, hw, with_cp=self.with_cp)
        return x, hw


def token_parameter(num_tokens: int, embed_dims: int) -> nn.Parameter:
    """Class token or position embedding of shape (1, num_tokens, embed_dims), truncated normal."""
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(1, num_tokens, embed_dims), std=0.02))


def with_token(token: Tensor, x: Tensor) -> Tensor:
    """Puts a class token (1, 1, C) in front of tokens (B, n, C): (B, 1 + n, C)."""
    return torch.cat([token.to(x.dtype).expand(x.size(0), -1, -1), x], dim=1)
