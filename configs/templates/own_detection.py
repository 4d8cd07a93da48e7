"""RetinaNet on your own data set: copy this file beside itself, change the first part. See docs/own_data.md.

A copy in another folder needs another path in _base_. Change its names here: --cfg-options has no effect on them.

tools/train.py configs/templates/NAME.py
"""

_base_ = '../retinanet_soft_tiny_1x.py'
# What you must change.
root = 'data/pets'
classes = ('cat', 'dog')  # names in the file's "categories", in its order; one class: ('cat',)
palette = [(220, 20, 60), (0, 90, 230)]  # a colour of each class
train_annotations, train_images = 'train.json', 'images/'
val_annotations, val_images = 'val.json', 'images/'
# What you may want to change.
scale = (1333, 800)  # maximum of the longer and of the shorter side of images, in pixels
smallest = 32  # side of the smallest objects at this scale, in pixels
max_per_img = 100  # more than the objects in the most crowded image
epochs = 12
batch_size, learning_rate = 2, 1e-4 * 2 / 16  # proportional
warm_start = None  # a detector's checkpoint; None: ImageNet weights; --from-scratch: neither
save_best = 'coco/bbox_mAP'  # for crowded images 'coco/bbox_mAP_50'

# The rest follows.
model = dict(
    backbone=dict(init_cfg=None) if warm_start else {},
    bbox_head=dict(num_classes=len(classes), anchor_generator=dict(octave_base_scale=smallest / 8)),
    test_cfg=dict(max_per_img=max_per_img),
)
load_annotations = dict(type='LoadAnnotations', with_bbox=True)
resize = dict(type='Resize', scale=scale, keep_ratio=True)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    load_annotations,
    resize,
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    resize,
    load_annotations,
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
sizes = [tuple(side * zoom // 2 for side in scale) for zoom in (1, 2, 3)]
scales = [dict(type='Resize', scale=size, keep_ratio=True) for size in sizes]
flips = [dict(type='RandomFlip', prob=1.0), dict(type='RandomFlip', prob=0.0)]
packed = dict(type='PackDetInputs', meta_keys=(*test_pipeline[-1]['meta_keys'], 'flip', 'flip_direction'))
views = dict(type='TestTimeAug', transforms=[scales, flips, [load_annotations], [packed]])
tta_pipeline = [dict(type='LoadImageFromFile'), views]
merged = dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=max_per_img)  # boxes, not masks
tta_model = dict(type='DetTTAModel', tta_cfg=merged)
own = dict(data_root=root, metainfo=dict(classes=classes, palette=palette))
train_data = dict(ann_file=train_annotations, data_prefix=dict(img=train_images), pipeline=train_pipeline)
val_data = dict(ann_file=val_annotations, data_prefix=dict(img=val_images), pipeline=test_pipeline)
train_dataloader = dict(batch_size=batch_size, dataset=dict(**own, **train_data))
val_dataloader = dict(dataset=dict(**own, **val_data))
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f'{root}/{val_annotations}')
test_evaluator = val_evaluator
train_cfg = dict(max_epochs=epochs)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, end=100),
    dict(type='CosineAnnealingLR', T_max=epochs, eta_min=learning_rate / 100, convert_to_iter_based=True),
]
optim_wrapper = dict(optimizer=dict(lr=learning_rate))
default_hooks = dict(checkpoint=dict(max_keep_ckpts=2, save_best=save_best))
load_from = warm_start
auto_scale_lr = dict(base_batch_size=batch_size)
