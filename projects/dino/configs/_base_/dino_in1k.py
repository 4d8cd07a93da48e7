"""DINO's views of ImageNet-1k: two of 224², eight of 96²; and the k-NN evaluation."""

_base_ = 'dino.py'
colours = [
    dict(type='RandomFlip', prob=0.5),
    dict(
        type='RandomApply',
        transforms=[dict(type='ColorJitter', brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)],
        prob=0.8,
    ),
    dict(type='RandomGrayscale', prob=0.2, keep_channels=True, channel_weights=(0.114, 0.587, 0.2989)),
]
crop = dict(type='RandomResizedCrop', interpolation='bicubic', backend='pillow')
blur = dict(type='GaussianBlur', magnitude_range=(0.1, 2.0), magnitude_std='inf')
large = dict(crop, scale=224, crop_ratio_range=(0.4, 1.0))
small = dict(crop, scale=96, crop_ratio_range=(0.05, 0.4))
views = [
    [large, *colours, dict(blur, prob=1.0)],
    [large, *colours, dict(blur, prob=0.1), dict(type='Solarize', thr=128, prob=0.2)],
    [small, *colours, dict(blur, prob=0.5)],
]
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='MultiView', num_views=[1, 1, 8], transforms=views),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=256, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]
loader = dict(num_workers=8, persistent_workers=True, collate_fn=dict(type='default_collate'))
images = dict(type='ImageNet', data_root='data/imagenet')
train_dataloader = dict(
    **loader,
    batch_size=64,
    drop_last=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(**images, split='train', pipeline=train_pipeline),
)
evaluated = dict(**loader, batch_size=128, sampler=dict(type='DefaultSampler', shuffle=False))
test_dataloader = dict(**evaluated, dataset=dict(**images, split='val', pipeline=test_pipeline))
bank = dict(**evaluated, dataset=dict(**images, split='train', pipeline=test_pipeline))
test_cfg = dict(type='KNNTestLoop', bank=bank)
