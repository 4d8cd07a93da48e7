"""The generated data set: what is on disk, read back by others, and what becomes of it."""

import errno
import json
import multiprocessing
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmengine.registry import init_default_scope
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from mmsoft.datasets import shapes
from mmsoft.datasets.shapes import CLASSES, METAINFO, STUFF, Parameters, ensure_shapes, generate
from mmsoft.utils import UsageError

# Image, category and box of each object.
SCENES = [
    (1, 6, 10, 15, 24, 26),
    (2, 4, 1, 3, 23, 21),
    (2, 3, 36, 8, 20, 25),
    (2, 2, 46, 20, 14, 15),
    (2, 5, 52, 34, 12, 14),
    (3, 2, 0, 12, 22, 23),
    (3, 1, 26, 24, 22, 25),
    (3, 4, 8, 40, 20, 19),
]
SKY_SCENES = [
    (1, 6, 28, 47, 19, 17),
    (1, 6, 17, 14, 27, 28),
    (2, 7, 17, 8, 15, 19),
    (2, 8, 0, 2, 18, 23),
    (2, 11, 41, 11, 20, 22),
    (2, 7, 17, 29, 22, 19),
    (3, 3, 3, 4, 18, 18),
    (3, 4, 20, 5, 24, 22),
    (3, 6, 0, 43, 16, 20),
]
SMALL = dict(train=6, val=2, portraits=32, size=64, portrait_size=32)


@pytest.fixture(scope='module')
def root(once):
    """Scenes of the default size, enough that everything rare is among them."""
    made = once('shapes_of_all_kinds', lambda folder: ensure_shapes(folder / 'shapes', train=120, val=80, portraits=72))
    return made / 'shapes'


@pytest.fixture
def small(tmp_path):
    return ensure_shapes(tmp_path / 'shapes', **SMALL)


def state(root):
    """Content and time of every file."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob('*') if path.is_file()}


@pytest.mark.parametrize('split', ['train', 'val'])
class TestCoco:
    @pytest.fixture
    def coco(self, root, split):
        return COCO(root / shapes.INSTANCES[split])

    def test_annotations_are_valid(self, coco):
        for annotation in coco.loadAnns(coco.getAnnIds()):
            image, mask = coco.loadImgs(annotation['image_id'])[0], coco.annToMask(annotation)
            x, y, width, height = annotation['bbox']
            assert annotation['area'] == mask.sum() > 0
            assert (x, y, width, height) == cv2.boundingRect(mask)
            assert 0 <= x < x + width <= image['width'] and 0 <= y < y + height <= image['height']

    def test_crowds_and_empty_images_are_among_them(self, coco):
        assert coco.getAnnIds(iscrowd=True)
        assert set(coco.getImgIds()) - {annotation['image_id'] for annotation in coco.anns.values()}

    def test_sizes_reach_from_tiny_to_half_the_image(self, coco):
        sides = [max(one['bbox'][2:]) for one in coco.anns.values() if not one['iscrowd']]
        half = Parameters().size / 2
        assert min(sides) <= 12 and 0.9 * half <= max(sides) <= half + 2
        assert 0.1 * half < np.quantile(sides, 0.1) < 0.5 * half

    def test_all_classes_are_common(self, coco):
        counts = np.bincount([annotation['category_id'] for annotation in coco.anns.values()])[1:]
        assert len(counts) == len(CLASSES) >= 6
        assert counts.min() > 0.4 * counts.mean()

    def test_masks_agree_with_the_semantic_labels(self, coco, root, split):
        for annotation in coco.anns.values():
            name = coco.imgs[annotation['image_id']]['file_name'].replace('.jpg', '.png')
            labels = cv2.imread(str(root / shapes.LABELS[split] / name), cv2.IMREAD_UNCHANGED)
            assert (labels[coco.annToMask(annotation) > 0] == annotation['category_id']).all()


@pytest.mark.parametrize(
    'mask',
    [
        np.ones((5, 7), bool),
        np.pad(np.ones((1, 1), bool), 2),
        np.eye(6, dtype=bool),
        np.pad(np.zeros((2, 2), bool), 2, constant_values=True),
        np.arange(77).reshape(7, 11) % 3 > 0,
    ],
    ids=['full', 'pixel', 'diagonal', 'hole', 'scattered'],
)
def test_run_lengths_are_exact(mask):
    height, width = mask.shape
    runs = coco_mask.frPyObjects(shapes.run_lengths(mask), height, width)
    np.testing.assert_array_equal(coco_mask.decode(runs), mask)


def test_hue_hints_at_the_class_and_does_not_decide(root):
    """Whoever names each object by the typical hue that is nearest to its own is wrong for many."""
    coco = COCO(root / shapes.INSTANCES['train'])
    right = []
    for annotation in coco.anns.values():
        image = cv2.imread(str(root / shapes.IMAGES['train'] / coco.imgs[annotation['image_id']]['file_name']))
        colour = image[coco.annToMask(annotation) > 0].mean(0)
        hue = cv2.cvtColor(np.float32([[colour]]) / 255, cv2.COLOR_BGR2HSV)[0, 0, 0] / 360
        right.append(round(hue * len(CLASSES)) % len(CLASSES) == annotation['category_id'] - 1)
    assert 0.6 < np.mean(right) < 0.88


class TestHostLoaders:
    @pytest.mark.parametrize('split', ['train', 'val'])
    def test_mmdet(self, root, split):
        init_default_scope('mmdet')
        from mmdet.registry import DATASETS

        pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True, with_mask=True)]
        dataset = DATASETS.build(
            dict(
                type='CocoDataset',
                data_root=str(root),
                ann_file=shapes.INSTANCES[split],
                data_prefix=dict(img=shapes.IMAGES[split]),
                metainfo=METAINFO,
                pipeline=pipeline,
            )
        )
        coco = COCO(root / shapes.INSTANCES[split])
        assert len(dataset) == len(coco.imgs)
        samples = [dataset[index] for index in range(len(dataset))]
        assert sum(len(sample['gt_bboxes']) for sample in samples) == len(coco.anns)
        assert sum(sample['gt_ignore_flags'].sum() for sample in samples) == len(coco.getAnnIds(iscrowd=True))
        for sample in samples:
            assert sample['img'].shape[:2] == sample['ori_shape']
            assert sample['gt_masks'].masks.shape == (len(sample['gt_bboxes']), *sample['ori_shape'])
        learned = DATASETS.build(dict(shapes.shapes_dataset('mmdet', str(root), split), pipeline=[]))
        assert len(learned) == len({annotation['image_id'] for annotation in coco.anns.values()}) < len(dataset)

    @pytest.mark.parametrize('split', ['train', 'val'])
    def test_mmseg(self, root, split):
        init_default_scope('mmseg')
        from mmseg.registry import DATASETS

        pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]
        dataset = DATASETS.build(dict(shapes.shapes_dataset('mmseg', str(root), split), pipeline=pipeline))
        assert len(dataset) == (120 if split == 'train' else 80)
        labels = np.unique(np.concatenate([dataset[i]['gt_seg_map'].ravel() for i in range(len(dataset))]))
        assert labels.tolist() == [*range(len(CLASSES) + len(STUFF)), 255]
        assert dataset.metainfo['classes'] == CLASSES + STUFF

    @pytest.mark.parametrize('split, count', [('train', 72), ('val', 18)])
    def test_mmpretrain(self, root, split, count):
        init_default_scope('mmpretrain')
        from mmpretrain.registry import DATASETS

        cfg = shapes.shapes_dataset('mmpretrain', str(root), split)
        dataset = DATASETS.build(dict(cfg, pipeline=[dict(type='LoadImageFromFile')]))
        for info in map(dataset.get_data_info, range(count)):
            assert Path(info['img_path']).parent.name == dataset.metainfo['classes'][info['gt_label']]
        assert np.bincount(dataset.get_gt_labels()).tolist() == [count // len(CLASSES)] * len(CLASSES)
        assert dataset[0]['img'].shape == (Parameters().portrait_size,) * 2 + (3,)


class TestGeneration:
    def test_a_picture_depends_on_its_seed_alone(self):
        few, many = (dict(generate(Parameters(**dict(SMALL, train=train)))) for train in (3, 6))
        other = dict(generate(Parameters(**SMALL, seed=1)))
        pictures = [path for path in few if path.endswith(('jpg', 'png'))]
        assert all(few[path] == many[path] for path in pictures)
        assert not any(few[path] == other[path] for path in pictures)

    def test_the_scenes_are_those_of_the_published_scores(self):
        """Scores in the docs are of these scenes; processors and decoders may differ in a pixel."""
        files = dict(generate(Parameters(**dict(SMALL, train=3, portraits=24))))
        for path, scenes in (('annotations/train.json', SCENES), ('sky/train.json', SKY_SCENES)):
            coco = json.loads(files[path])
            boxes = [(one['image_id'], one['category_id'], *one['bbox']) for one in coco['annotations']]
            np.testing.assert_allclose(boxes, scenes, atol=1)
        assert [one['name'] for one in coco['categories'] if one['id'] in (6, 7)] == ['day heart', 'night circle']
        assert len({*shapes.SKY_METAINFO['palette']}) == len(coco['categories']) == 12
        means = {'images/training': [134.4, 100.1, 144.2], 'sky/train/': [124.5, 128.2, 125.4]}
        for folder, expected in dict(means, **{'imagenet/train/circle': [104.9, 117.5, 110.5, 109.9]}).items():
            images = [
                cv2.imdecode(np.frombuffer(files[path], np.uint8), cv2.IMREAD_COLOR)
                for path in sorted(files)
                if path.startswith(folder)
            ]
            np.testing.assert_allclose([image.mean() for image in images], expected, atol=0.5)
        again = cv2.imencode('.jpg', images[0], [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()
        assert files['imagenet/train/circle/000000.jpg'][:150] == again[:150], 'of another quality'

    def test_no_picture_is_in_both_splits(self):
        files = dict(generate(Parameters(**SMALL)))
        pictures = [content for path, content in files.items() if path.endswith('jpg')]
        assert len(pictures) == len(set(pictures))


class TestUpkeep:
    def test_nothing_is_written_when_it_is_there(self, small, monkeypatch):
        before, said = state(small), []
        monkeypatch.setattr(shapes, 'print_log', lambda message, logger: said.append(message))
        ensure_shapes(small)
        ensure_shapes(small, **SMALL)
        assert state(small) == before and not said
        ensure_shapes(small.parent / 'other', **dict(SMALL, train=1))
        assert said == [f'Writing the synthetic shapes data set to {small.parent / "other"}.']

    @pytest.mark.parametrize('content', ['', '[1]', '{"version": 4, "parameters": {"train": 6}, "files": {}}'])
    def test_another_version_is_replaced(self, small, content):
        before = {path: content for path, (content, _) in state(small).items()}
        (small / 'shapes.json').write_text(content)
        (small / 'images/training/999999.jpg').write_text('of the other version')
        ensure_shapes(small, **SMALL)
        assert {path: content for path, (content, _) in state(small).items()} == before

    def test_parameters_of_another_version_are_not_kept(self, tmp_path):
        other = '{"version": 2, "parameters": {"size": 160, "gone": 1}}'
        (tmp_path / 'shapes.json').write_text(other)
        ensure_shapes(tmp_path, train=1, val=1, portraits=6)
        assert json.loads((tmp_path / 'shapes.json').read_text())['parameters']['size'] == Parameters().size

    def test_an_interruption_leaves_nothing(self, tmp_path, small, monkeypatch):
        root, count = tmp_path / 'interrupted', 0
        write_bytes = Path.write_bytes

        def interrupted(path, content):
            nonlocal count
            count += 1
            if count > 10:
                raise KeyboardInterrupt
            return write_bytes(path, content)

        with monkeypatch.context() as patch:
            patch.setattr(Path, 'write_bytes', interrupted)
            with pytest.raises(KeyboardInterrupt):
                ensure_shapes(root, **SMALL)
        assert not root.exists() and not list(tmp_path.glob('.*.new'))
        ensure_shapes(root, **SMALL)
        assert {path.relative_to(root) for path in state(root)} == {path.relative_to(small) for path in state(small)}

    def test_a_folder_that_cannot_be_replaced_stays(self, small, monkeypatch):
        """Such as a mount point."""
        before, replace = state(small), Path.replace

        def busy(path, target):
            if path == small:
                raise OSError(errno.EBUSY, 'Device or resource busy', str(path))
            return replace(path, target)

        monkeypatch.setattr(Path, 'replace', busy)
        with pytest.raises(OSError, match='busy'):
            ensure_shapes(small, **dict(SMALL, train=7))
        assert state(small) == before and not list(small.parent.glob('.*.new'))

    def test_what_a_killed_process_left_is_no_obstacle(self, tmp_path):
        (tmp_path / '.shapes.new/images').mkdir(parents=True)
        (tmp_path / '.shapes.new/images/x.jpg').touch()
        root = ensure_shapes(tmp_path / 'shapes', **SMALL)
        assert not (root / 'images/x.jpg').exists() and (root / 'shapes.json').exists()

    def test_the_folder_can_be_elsewhere(self, tmp_path):
        (tmp_path / 'elsewhere').mkdir()
        (tmp_path / 'shapes').symlink_to(tmp_path / 'elsewhere')
        root = ensure_shapes(tmp_path / 'shapes', **SMALL)
        assert root.is_symlink() and (tmp_path / 'elsewhere/shapes.json').exists()

    def test_other_parameters_replace_what_was_there(self, small):
        ensure_shapes(small, train=3)
        assert sorted(path.name for path in (small / 'images/training').iterdir()) == [
            '000000.jpg',
            '000001.jpg',
            '000002.jpg',
        ]
        assert len(json.loads((small / 'annotations/train.json').read_text())['images']) == 3
        before = state(small)
        ensure_shapes(small)
        assert state(small) == before

    def test_another_folder_is_left_alone(self, tmp_path):
        (tmp_path / 'images').mkdir()
        (tmp_path / 'images/holiday.jpg').write_text('dear')
        before = state(tmp_path)
        for path in (tmp_path, tmp_path / 'images/holiday.jpg'):
            with pytest.raises(UsageError, match=f'^{path} is not the synthetic shapes data set and is left alone'):
                ensure_shapes(path, **SMALL)
        assert state(tmp_path) == before

    def test_processes_do_not_get_in_each_other_s_way(self, tmp_path, small):
        root = tmp_path / 'shared'
        context = multiprocessing.get_context('spawn')
        processes = [context.Process(target=ensure_shapes, args=(root,), kwargs=SMALL) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0, 0]
        shutil.rmtree(small)
        shutil.copytree(root, small)
        before = state(small)
        ensure_shapes(small, **SMALL)
        assert state(small) == before
