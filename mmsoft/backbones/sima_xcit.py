"""SimA in the architecture of XCiT: attention at one stride, then class attention."""

from collections.abc import Sequence
from typing import Optional

from mmengine.model import ModuleList
from torch import Tensor, nn

from mmsoft.attention.base import Site, build_attention
from mmsoft.layers import xcit
from mmsoft.layers.blocks import apply_block
from mmsoft.layers.maps import to_map, to_tokens
from mmsoft.registry import MODELS
from mmsoft.utils import OptionError

from .base import Arch, BaseBackbone, token_parameter, with_token


@MODELS.register_module()
class SimAXCiT(BaseBackbone):
    """SimA with the layout of XCiT.

    Every output has the stride of the patches, so detectors need :class:`RescalePyramid` behind it. Any input size
    works: the convolutions of the patch embedding give ceil(H / patch) rows, without padding or cropping. If a batch
    pads images to one size, the padding enters the norm over all tokens, so an image's result depends on the sizes of
    the others. Published networks are trained so; ``mask_padding`` excludes padding.

    Args:
        arch (str or dict): ``'{nano-12, tiny-12, tiny-20, tiny-24, small-12, small-24, medium-24, large-24}-{p16,
            p8}'``, or a dict with ``embed_dims``, ``num_heads``, ``depth``, ``patch_size`` and optionally ``gamma``
            (the initial γ, 1) and ``norm_tokens`` (see :class:`ClassAttentionBlock`, True).
        out_indices (Sequence[int]): Blocks to return, without a norm. Networks of 24 blocks need others than the
            default: (7, 11, 15, 23) in XCiT's detectors.
        attention (dict): A registered attention and its options, for the patches. Defaults to SimA's.
        class_attention (dict, optional): The same for the two blocks in which the class token attends. Defaults to
            :meth:`mmsoft.attention.Attention.class_attention` of ``attention``, or to SimA's if it has none.
        num_heads (int, optional): Heads, instead of those of ``arch``.
        lpi (bool): False removes the local patch interaction (2206.08898, App. A.2).
        act_cfg (dict): Activation of the blocks; the patch embedding keeps its GELU.
        mask_padding (bool): Find each image's zero padding (see :func:`mmsoft.layers.xcit.image_extent`) and exclude it
            from every layer: in eval mode, an image has the same result as alone, and zeros in the padding.
        norm_cfg (dict): Norm of the convolutions. Defaults to BatchNorm; published networks train with SyncBN.
        **kwargs: See :class:`BaseBackbone`. Stochastic depth is the same for all blocks, 0.05 in the paper.

    Example:
        >>> maps = SimAXCiT('small-12-p16')(torch.rand(1, 3, 224, 224))
        >>> [tuple(m.shape) for m in maps]
        [(1, 384, 14, 14), (1, 384, 14, 14), (1, 384, 14, 14), (1, 384, 14, 14)]
    """

    published = 'sima_xcit'
    unit = 'blocks'
    arch_defaults = dict(gamma=1.0, norm_tokens=True)
    stem = ('patch_embed', 'pos_encoding')

    # XCiT initialises γ to 1 for 12 blocks and to 1e-5 for 24; the value for the paper's 20 blocks is not published.
    arch_settings = {
        f'{name}-{depth}-p{patch_size}': dict(
            embed_dims=embed_dims,
            num_heads=num_heads,
            depth=depth,
            patch_size=patch_size,
            gamma=1.0 if depth == 12 else 1e-5,
            norm_tokens=name != 'nano',
        )
        for patch_size in (16, 8)
        for name, depths, embed_dims, num_heads in (
            ('nano', [12], 128, 4),
            ('tiny', [12, 20, 24], 192, 4),
            ('small', [12, 24], 384, 8),
            ('medium', [24], 512, 8),
            ('large', [24], 768, 16),
        )
        for depth in depths
    }

    def __init__(
        self,
        arch: Arch = 'small-12-p16',
        out_indices: Sequence[int] = (3, 5, 7, 11),
        attention: dict = dict(type='SimAAttention'),
        class_attention: Optional[dict] = None,
        num_heads: Optional[int] = None,
        lpi: bool = True,
        act_cfg: dict = dict(type='GELU'),
        mask_padding: bool = False,
        norm_cfg: dict = dict(type='BN'),
        **kwargs,
    ) -> None:
        super().__init__(arch, out_indices, **kwargs)
        dims, patch_size, gamma = self.embed_dims, self.arch['patch_size'], self.arch['gamma']
        self.mask_padding = mask_padding
        self.patch_embed = xcit.ConvPatchEmbed(self.in_channels, dims, patch_size, norm_cfg)
        site = Site(dims, num_heads or self.arch['num_heads'], (224 // patch_size,) * 2, max(1, 32 // patch_size))
        self.pos_encoding = xcit.FourierPositionEncoding(dims)
        options: tuple = (gamma, lpi, self.drop_rate, self.drop_path_rate, act_cfg, norm_cfg)
        self.blocks = ModuleList(
            xcit.XCiTBlock(build_attention(attention, site), dims, *options) for _ in range(self.out_indices[-1] + 1)
        )
        if self.has_cls_token:
            own = self.blocks[0].attn.class_attention()
            class_attention = class_attention or own or dict(type='SimAClassAttention')
            self.cls_token = token_parameter(1, dims)
            options = (gamma, self.arch['norm_tokens'], act_cfg)
            self.cls_blocks = ModuleList(
                xcit.ClassAttentionBlock(build_attention(class_attention, site, class_token=True), dims, *options)
                for _ in range(2)
            )
            self.norm = nn.LayerNorm(dims, eps=1e-6)
        if mask_padding and any(isinstance(one, (nn.GroupNorm, nn.InstanceNorm2d)) for one in self.modules()):
            raise OptionError('mask_padding needs a norm that does not see the padding, such as BN; change norm_cfg')
        self.tail = ('cls_token', 'cls_blocks', 'norm') if self.has_cls_token else ()
        self.freeze()

    def forward(self, x: Tensor) -> tuple:
        """Maps images (B, in_channels, H, W) to a tuple of maps (B, C, ceil(H / patch), ceil(W / patch))."""
        x, extent = self.patch_embed(x, xcit.image_extent(x) if self.mask_padding else None)
        hw = (x.size(2), x.size(3))
        mask = sizes = None
        if extent is not None:
            mask = xcit.extent_mask(extent, hw)
            takes_mask = (getattr(module, 'takes_mask', True) for module in self.modules())
            sizes = None if all(takes_mask) else extent.tolist()  # the only device synchronisation
        x, maps = to_tokens(x).contiguous() + self.pos_encoding(x, extent), []
        for i, block in enumerate(self.blocks):
            x = apply_block(block, x, hw, mask, sizes, with_cp=self.with_cp)
            if i in self.out_indices:
                maps.append(to_map(x, hw) if mask is None else to_map(x, hw) * mask)
        if not self.has_cls_token:
            return self._outputs(maps)
        x = with_token(self.cls_token, x)
        for block in self.cls_blocks:
            x = apply_block(block, x, hw, mask, sizes, with_cp=self.with_cp)
        return self._outputs(maps, self.norm(x[:, 0]))

    def _layers(self) -> list[tuple[str, ...]]:
        return super()._layers() + ([('cls_token', 'cls_blocks.0.'), ('cls_blocks.1.',)] if self.has_cls_token else [])
