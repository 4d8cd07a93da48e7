"""XCiT-S12/16 as its authors and mmpretrain have it, with which SimA compares."""

xcit_small_12_p16 = dict(
    type='mmpretrain.XCiT',
    patch_size=16,
    embed_dims=384,
    depth=12,
    num_heads=8,
    layer_scale_init_value=1.0,
    tokens_norm=True,
    drop_path_rate=0.05,
)
xcit_start = dict(type='TruncNormal', layer='Linear', std=0.02)  # mmpretrain's default has a deviation of 1
