"""The backbones in timm's registry: ``import mmsoft.timm``, then ``timm.create_model('soft_norm_tiny')``.

transformers' ``TimmBackbone`` and segmentation_models_pytorch's ``tu-`` encoders take the names, too. They are
``soft_*`` and ``soft_norm_*`` (tiny … huge), ``sima_xcit_*``, ``sima_deit_*`` and ``sima_cvt_*``;
``timm.list_models('soft*')`` lists them. timm is needed for this module only.
"""
from typing import List, Optional, Sequence

from mmengine.logging import MMLogger
from torch import Tensor, nn

from mmsoft.backbones import SOFT, SimACvT, SimADeiT, SimAXCiT
from mmsoft.backbones.base import BaseBackbone
from mmsoft.checkpoint import convert_classifier_checkpoint, read_checkpoint, select_state_dict
from mmsoft.utils import HostError, UsageError

try:
    from timm.models import FeatureInfo, register_model
except ImportError as error:
    raise HostError('mmsoft.timm needs timm, which is not installed: pip install timm.') from error

#: What published networks see, in timm's words.
INPUT = dict(input_size=(3, 224, 224), crop_pct=0.9, interpolation='bicubic', num_classes=1000, pool_size=None,
             mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), first_conv=None, classifier='head.fc')


class Network(nn.Module):
    """A backbone under timm's conventions, which loads whatever the backbone loads, published files included.

    Args:
        name (str): Its name in timm's registry.
        backbone (BaseBackbone): The backbone, which is initialised.
    """

    def __init__(self, name: str, backbone: BaseBackbone) -> None:
        super().__init__()
        logger = MMLogger.get_current_instance()
        level = logger.level
        logger.setLevel('WARNING')  # mmengine tells how each parameter was initialised
        backbone.init_weights()
        logger.setLevel(level)
        self.backbone = backbone
        self.pretrained_cfg = self.default_cfg = dict(INPUT, architecture=name)
        self._register_load_state_dict_pre_hook(self._take_published)

    def load_pretrained(self, filename: str) -> None:
        """Loads a checkpoint; the classifier of other classes than this one's stays as it was initialised.

        Args:
            filename (str): See :func:`mmsoft.checkpoint.read_checkpoint`.

        Raises:
            CheckpointError: If the file holds another network.
        """
        state_dict, _ = select_state_dict(read_checkpoint(filename), filename)
        self.load_state_dict(state_dict, strict=False)

    def _take_published(self, state_dict: dict, prefix: str, *args) -> None:
        if prefix:
            return  # a part of another model, which has saved it
        convert_classifier_checkpoint(self.backbone, state_dict)
        own = self.state_dict()
        for name in list(state_dict):
            if name not in own or name.startswith('head.') and own[name].shape != state_dict[name].shape:
                del state_dict[name]


class Features(Network):
    """Maps of a backbone, as ``create_model(…, features_only=True)`` returns them.

    Attributes:
        feature_info (FeatureInfo): ``channels()`` and ``reduction()`` of the maps; stages or blocks count as for the
            backbone's ``out_indices``.
    """

    def __init__(self, name: str, backbone: BaseBackbone) -> None:
        super().__init__(name, backbone)
        self.feature_info = FeatureInfo(_taps(backbone), backbone.out_indices)

    def forward(self, x: Tensor) -> List[Tensor]:
        """Images (B, 3, H, W) to maps (B, C, ceil(H / reduction), ceil(W / reduction))."""
        return list(self.backbone(x))


class Classifier(Network):
    """A classifier on a backbone's class token, with the methods that timm's models have.

    Args:
        name (str): Its name in timm's registry.
        backbone (BaseBackbone): Of ``out_type='cls_token'``.
        num_classes (int): 0 for the class token itself.
    """

    def __init__(self, name: str, backbone: BaseBackbone, num_classes: int) -> None:
        super().__init__(name, backbone)
        self.num_features = backbone.out_channels[-1]
        self.head = nn.Module()
        self.reset_classifier(num_classes)

    def reset_classifier(self, num_classes: int, global_pool: Optional[str] = None) -> None:
        """Puts a new linear layer in the classifier's place; there is no pooling to choose."""
        self.num_classes = num_classes
        self.head.fc = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()

    def get_classifier(self) -> nn.Module:
        """The last layer."""
        return self.head.fc

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (B, 3, H, W) to class tokens (B, C)."""
        return self.backbone(x)[-1]

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Class tokens (B, C) to scores (B, num_classes)."""
        return x if pre_logits else self.head.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 3, H, W) to scores (B, num_classes)."""
        return self.forward_head(self.forward_features(x))


def _taps(backbone: BaseBackbone) -> List[dict]:
    """What timm wants to know of every map that ``out_indices`` may ask for."""
    dims, depth = backbone.arch['embed_dims'], backbone.arch.get('depth')
    if depth is None:
        return [dict(num_chs=dim, reduction=4 << i, module=f'backbone.stages.{i}') for i, dim in enumerate(dims)]
    patch_size = backbone.arch.get('patch_size') or backbone.patch_size
    return [dict(num_chs=dims, reduction=patch_size, module=f'backbone.blocks.{i}') for i in range(depth)]


def _register(name: str, body: type, **options) -> None:

    def create(pretrained: bool = False,
               pretrained_cfg: Optional[dict] = None,
               pretrained_cfg_overlay: Optional[dict] = None,
               cache_dir: Optional[str] = None,
               features_only: bool = False,
               out_indices: Optional[Sequence[int]] = None,
               in_chans: int = 3,
               num_classes: int = 1000,
               **kwargs) -> Network:
        kwargs = {**options, 'in_channels': in_chans, **kwargs}
        if out_indices is not None:
            kwargs['out_indices'] = out_indices
        if features_only:
            network = Features(name, body(**kwargs))
        else:
            network = Classifier(name, body(out_type='cls_token', **kwargs), num_classes)
        if pretrained:
            given = {**(vars(pretrained_cfg) if hasattr(pretrained_cfg, 'file') else pretrained_cfg or {}),
                     **(pretrained_cfg_overlay or {})}
            if not given.get('file'):
                raise UsageError(f'There are no weights of {name} to download; give pretrained_cfg_overlay=dict('
                                 'file=FILE), and see docs/pretrained_weights.md for files.')
            network.load_pretrained(given['file'])
        return network

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f'{body.__name__} with {options}; further arguments are the backbone\'s.'
    register_model(create)


for _body, _name in ((SimAXCiT, 'sima_xcit'), (SimADeiT, 'sima_deit'), (SimACvT, 'sima_cvt')):
    for _arch in _body.arch_settings:
        _register(f'{_name}_{_arch.replace("-", "_")}', _body, arch=_arch)
for _arch in SOFT.arch_settings:
    _register(f'soft_{_arch}', SOFT, arch=_arch, attention_norm=False)
    _register(f'soft_norm_{_arch}', SOFT, arch=_arch, attention_norm=True)
