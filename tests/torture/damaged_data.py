"""Data sets and configs with one thing wrong, made from the shapes."""

import json

import numpy as np
from PIL import Image

COCO = 'annotations/train.json'


def coco(change):
    """A change of the annotation file: takes its content and a random generator, and returns another content or None."""

    def apply(root, rng):
        file = root / COCO
        content = json.loads(file.read_text())
        changed = change(content, rng)
        file.write_text(json.dumps(content if changed is None else changed))

    return apply


def one(table, rng):
    return table[int(rng.integers(len(table)))]


def put(table, field, *values):
    """One entry gets another value in a field."""
    return coco(lambda content, rng: one(content[table], rng).update({field: values[int(rng.integers(len(values)))]}))


def every(table, field, value):
    return coco(lambda content, rng: [entry.update({field: value}) for entry in content[table]] and None)


def drop(table, field):
    return coco(lambda content, rng: one(content[table], rng).pop(field) and None)


def double(table, same_id):

    def change(content, rng):
        entry = dict(one(content[table], rng))
        content[table].append(entry if same_id else dict(entry, id=10**6))

    return coco(change)


def run_length(size, counts):
    return coco(
        lambda content, rng: (
            [entry.update(segmentation=dict(size=size, counts=counts)) for entry in content['annotations']] and None
        )
    )


def picture(change, below='images/training'):

    def apply(root, rng):
        change(one(sorted((root / below).rglob('*.*')), rng), rng)

    return apply


def cut(path, rng):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * rng.uniform(0, 0.8))])


def repaint(value, mode='L', size=None):

    def change(path, rng):
        old = Image.open(path)
        labels = np.full((size or old.size)[::-1], value, np.uint8)
        Image.fromarray(labels).convert(mode).save(path)

    return change


def text(content):
    return lambda path, rng: path.write_text(content)


def folder(change):
    return lambda root, rng: change(one(sorted(path for path in (root / 'imagenet/train').iterdir()), rng))


def emptied(path):
    for file in path.iterdir():
        file.unlink()


WEIRD = None, 'x', [], {}, -1
REFUSED = dict(
    coco={
        'not JSON': lambda root, rng: (root / COCO).write_bytes(
            (root / COCO).read_bytes()[: int(rng.integers(2, 2000))]
        ),
        'a list': coco(lambda content, rng: []),
        'a number': coco(lambda content, rng: 3),
        'nested': lambda root, rng: (root / COCO).write_text('[' * 10**5),
        **{
            f'no {name}': coco(lambda content, rng, name=name: content.pop(name) and None)
            for name in ('images', 'annotations', 'categories')
        },
        **{
            f'{name} is odd': coco(lambda content, rng, name=name: content.update({name: one(WEIRD, rng)}))
            for name in ('images', 'annotations', 'categories')
        },
        **{
            f'{table} without {field}': drop(table, field)
            for table, fields in dict(
                images=('id', 'file_name', 'width', 'height'),
                categories=('id', 'name'),
                annotations=('id', 'image_id', 'category_id', 'bbox', 'area'),
            ).items()
            for field in fields
        },
        'width is odd': put('images', 'width', None, 'x'),
        'height is odd': put('images', 'height', '64', []),
        'name is odd': put('images', 'file_name', 3, None),
        'box is odd': put('annotations', 'bbox', None, 'x', [1, 2, 3], [1, 2, 'a', 4], [1, 2, None, 3], {}),
        'area is odd': put('annotations', 'area', None, 'x', []),
        'entry is odd': coco(
            lambda content, rng: content[one(['images', 'annotations', 'categories'], rng)].insert(0, one(WEIRD, rng))
        ),
        'other categories': coco(
            lambda content, rng: [entry.update(name=entry['name'] + 's') for entry in content['categories']] and None
        ),
        'a category is missing': coco(lambda content, rng: one(content['categories'], rng).update(name='boat')),
        'category twice': coco(
            lambda content, rng: content['categories'].append(dict(content['categories'][0], id=77))
        ),
        'annotation id twice': double('annotations', True),
        'category id twice': double('categories', True),
        'no entries': coco(lambda content, rng: content.update(images=[])),
        'nothing to learn': coco(lambda content, rng: content.update(annotations=[])),
        'boxes from 0 to 1': every('annotations', 'bbox', [0.1, 0.1, 0.5, 0.5]),
        'boxes outside': every('annotations', 'bbox', [900, 900, 10, 10]),
        'boxes of no area': every('annotations', 'bbox', [5, 5, 0, 0]),
        'areas of nothing': every('annotations', 'area', 0),
        'images unknown': every('annotations', 'image_id', 999),
        'no picture': put('images', 'file_name', 'nothing.jpg', '../x.jpg', 'a\nb.jpg'),
        'picture missing': picture(lambda path, rng: path.unlink()),
        'picture cut': picture(cut),
        'picture is text': picture(text('<html>')),
        'picture empty': picture(text('')),
    },
    masks={
        'no mask': coco(lambda content, rng: [entry.pop('segmentation') for entry in content['annotations']] and None),
        'mask empty': every('annotations', 'segmentation', []),
        'mask is odd': every('annotations', 'segmentation', 'x'),
        'mask of words': every('annotations', 'segmentation', [['a', 'b', 'c', 'd', 'e', 'f']]),
        'mask of another size': run_length([7, 9], [63]),
        'mask of too many pixels': run_length([64, 64], [5]),
    },
    ade20k={
        'label map missing': picture(lambda path, rng: path.unlink(), 'annotations/training'),
        'label map cut': picture(cut, 'annotations/training'),
        'label map is text': picture(text('x'), 'annotations/training'),
        'picture cut': picture(cut),
        'picture is text': picture(text('x')),
        'no pictures': lambda root, rng: emptied(root / 'images/training'),
    },
    imagenet={
        'class missing': folder(lambda path: (emptied(path), path.rmdir())),
        'class too many': lambda root, rng: [(root / f'imagenet/{split}/zebra').mkdir() for split in ('train', 'val')],
        'picture cut': picture(cut, 'imagenet/train'),
        'picture is text': picture(text('x'), 'imagenet/train'),
        'no pictures': lambda root, rng: [emptied(path) for path in (root / 'imagenet/train').iterdir()],
        'no folders': lambda root, rng: [path.rename(root / path.name) for path in (root / 'imagenet/train').iterdir()],
    },
)
HARMLESS = dict(
    coco={
        'as it was': lambda root, rng: None,
        'one box outside': put('annotations', 'bbox', [900, 900, 10, 10]),
        'one box of no area': put('annotations', 'bbox', [5, 5, 0, 9]),
        'one area of nothing': put('annotations', 'area', 0),
        'one stray': put('annotations', 'image_id', 999),
        'one wrong size': put('images', 'height', 4000),
        'more fields': put('images', 'camera', 'x', None),
        'no info': coco(lambda content, rng: {key: value for key, value in content.items() if key != 'info'}),
        'another category': coco(lambda content, rng: content['categories'].append(dict(id=70, name='boat'))),
        'ids of images are names': coco(
            lambda content, rng: (
                [entry.update(id=str(entry['id'])) for entry in content['images']]
                + [entry.update(image_id=str(entry['image_id'])) for entry in content['annotations']]
                and None
            )
        ),
        'order': coco(lambda content, rng: [rng.shuffle(content[name]) for name in ('images', 'annotations')] and None),
        'more files': picture(lambda path, rng: path.with_name('notes.txt').write_text('x')),
        'one beyond the border': put('annotations', 'bbox', [-5, -5, 40, 40]),
    },
    masks={'as it was': lambda root, rng: None},
    ade20k={
        'as it was': lambda root, rng: None,
        'all is ignored': picture(repaint(255), 'annotations/training'),
        'all is clutter': picture(repaint(0), 'annotations/training'),
        'more label maps': lambda root, rng: (root / 'annotations/training/x.png').write_text('x'),
    },
    imagenet={
        'as it was': lambda root, rng: None,
        'one class is empty': folder(emptied),
        'more files': folder(lambda path: (path / 'notes.txt').write_text('x')),
    },
)

CONFIGS = {
    'unknown model': "model = dict(type='Nonsense')",
    'unknown backbone': "model = dict(backbone=dict(type='mmsoft.Nets'))",
    'unknown argument': 'model = dict(backbone=dict(depth=50))',
    'odd arch': 'model = dict(backbone=dict(arch=3))',
    'unknown arch': "model = dict(backbone=dict(arch='gigantic'))",
    'arch incomplete': 'model = dict(backbone=dict(arch=dict(_delete_=True, depths=[1])))',
    'no backbone': 'model = dict(backbone=None)',
    'odd model': 'model = 3',
    'no dataset': 'train_dataloader = dict(dataset=None)',
    'odd dataset': 'train_dataloader = dict(dataset=[])',
    'unknown dataset': "train_dataloader = dict(dataset=dict(type='Nonsense'))",
    'unknown transform': "train_dataloader = dict(dataset=dict(pipeline=[dict(type='Nonsense')]))",
    'odd pipeline': 'train_dataloader = dict(dataset=dict(pipeline=3))',
    'odd loader': 'train_dataloader = 3',
    'batch of nothing': 'train_dataloader = dict(batch_size=0)',
    'odd batch': "train_dataloader = dict(batch_size='x')",
    'odd workers': "train_dataloader = dict(num_workers='two', persistent_workers=False)",
    'unknown optimizer': "optim_wrapper = dict(optimizer=dict(type='Nonsense'))",
    'odd rate': "optim_wrapper = dict(optimizer=dict(lr='fast'))",
    'odd wrapper': 'optim_wrapper = 3',
    'unknown loop': "train_cfg = dict(type='Nonsense')",
    'odd length': "train_cfg = dict(max_epochs='many')",
    'no loop': 'train_cfg = None',
    'unknown schedule': "param_scheduler = [dict(type='Nonsense')]",
    'odd schedule': 'param_scheduler = 3',
    'unknown hook': "custom_hooks = [dict(type='Nonsense')]",
    'unknown metric': "val_evaluator = dict(type='Nonsense')",
    'no evaluator': 'val_evaluator = None',
    'no file': "train_dataloader = dict(dataset=dict(ann_file='annotations/nothing.json'))",
    'no weights': "load_from = 'nothing.pth'",
    'another scope': "default_scope = 'mmocr'",
    'no scope': 'default_scope = None',
    'syntax': 'model = dict(',
    'a call': 'model = len(3)',
    'no base': "_base_ = 'nothing.py'",
    'other classes': "train_dataloader = dict(dataset=dict(metainfo=dict(classes=('a', 'b'))))",
    'classes of the head': 'model = dict(bbox_head=dict(num_classes=3))',
    'seed': "randomness = dict(seed='x')",
}
