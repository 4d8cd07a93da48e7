"""4,000 handwritten digits to train on, 1,000 to test on, for networks of patches of 8×8 pixels."""

normal = dict(mean=[33.0] * 3, std=[78.0] * 3)
pipeline = [dict(type='Resize', scale=32, interpolation='bicubic'), dict(type='PackInputs')]
loader = dict(num_workers=0, persistent_workers=False, pin_memory=False, collate_fn=dict(type='default_collate'))
digits = dict(type='Digits', pipeline=pipeline)
ordered = dict(**loader, batch_size=200, sampler=dict(type='DefaultSampler', shuffle=False))
bank = dict(**ordered, dataset=dict(**digits, held_out=False))
test_dataloader = dict(**ordered, dataset=dict(**digits, held_out=True))
sizes = dict(embed_dims=64, num_heads=4, depth=3, patch_size=8)
sima = dict(type='mmsoft.SimAXCiT', arch=sizes, out_indices=(2,), out_type='cls_token')
xcit = dict(
    type='mmpretrain.XCiT',
    img_size=32,
    layer_scale_init_value=1.0,
    tokens_norm=True,
    out_type='cls_token',
    init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),  # mmpretrain's default has a deviation of 1
    **sizes,
)
