"""tools/predict.py: every task, on a folder with subfolders and a broken picture, with tiny random models."""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmdet.visualization import DetLocalVisualizer
from mmpretrain.visualization import UniversalVisualizer
from PIL import Image
from pycocotools import mask as mask_utils
from safetensors.torch import save_file

from mmsoft.apis import export, predict, visualization, visualize
from mmsoft.apis.tasks import Classification, build_task
from mmsoft.checkpoint.safe_loading import use_safe_loading
from mmsoft.utils import UsageError
from mmsoft.utils.config import load_config

ROOT = Path(__file__).parents[2]
NAMES = ('mask_rcnn_soft_tiny_1x', 'upernet_soft_small_160k', 'soft_tiny_in1k')


@pytest.fixture
def pictures(tmp_path):
    """Four pictures of three shapes, two of them called alike, and a fifth that is cut off."""
    rng = np.random.default_rng(0)
    folder = tmp_path / 'pictures'
    for name, shape in (('a.jpg', (60, 80)), ('deep/a.png', (60, 80)), ('deep/a.jpg', (64, 48)), ('z.png', (60, 80))):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), rng.integers(0, 255, (*shape, 3), dtype=np.uint8))
    (folder / 'broken.jpg').write_bytes((folder / 'a.jpg').read_bytes()[:900])
    (folder / 'notes.txt').write_text('no picture')
    return folder


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file())


PICTURES = ['a.jpg', 'deep/a.jpg', 'deep/a.png', 'z.png']


@pytest.mark.parametrize('name', NAMES)
def test_every_task(name, tiny_model, pictures, tmp_path, capsys):
    out = tmp_path / 'out'
    broken = predict(*tiny_model(name), str(pictures), str(out), device='cpu', save_pred=True)
    printed = capsys.readouterr()
    assert broken == [pictures / 'broken.jpg'] and 'broken.jpg is skipped' in printed.err
    assert 'Failed to search registry' not in printed.out
    assert files(out / 'vis') == PICTURES
    for picture in PICTURES:
        assert cv2.imread(str(out / 'vis' / picture)).shape == cv2.imread(str(pictures / picture)).shape

    preds = out / 'preds'
    if name.startswith('upernet'):
        assert files(preds) == ['a.png', 'deep/a.jpg.png', 'deep/a.png.png', 'z.png']
        labels = np.asarray(Image.open(preds / 'deep/a.jpg.png'))
        assert labels.shape == (64, 48) and labels.max() < 150
        return
    assert files(preds) == ['a.json', 'deep/a.jpg.json', 'deep/a.png.json', 'z.json']
    found = json.loads((preds / 'deep/a.jpg.json').read_text())
    if name.startswith('mask'):
        assert len(found['labels']) == len(found['scores']) == len(found['bboxes']) == len(found['masks']) > 0
        assert all(mask_utils.decode(mask).shape == (64, 48) for mask in found['masks'])
        boxes = np.array(found['bboxes'])
        assert boxes.min() > -1 and boxes[:, 2].max() < 49 and boxes[:, 3].max() < 65
    else:
        assert sum(found['pred_scores']) == pytest.approx(1, abs=1e-4)
        assert found['pred_score'] == max(found['pred_scores']) == found['pred_scores'][found['pred_label']]
        assert found['pred_class']


@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
def test_what_a_pipeline_shrinks_to_nothing_is_skipped(tiny_model, tmp_path, capsys, backend):
    """As the tiny model's, to 320 pixels at most; it is named. A wrong pipeline is no fault of the images."""
    options, model = {'test_dataloader.dataset.pipeline.1.backend': backend}, tiny_model('mask_rcnn_soft_tiny_1x')
    (tmp_path / 'in').mkdir()
    for name, width in (('good', 90), ('narrow', 900)):
        cv2.imwrite(str(tmp_path / f'in/{name}.png'), np.zeros((1, width, 3), np.uint8))
    cv2.imwrite(str(tmp_path / 'square.png'), np.zeros((40, 40, 3), np.uint8))
    folders = str(tmp_path / 'in'), str(tmp_path / 'out')
    broken = predict(*model, *folders, 'cpu', cfg_options=options)
    assert broken == [tmp_path / 'in/narrow.png'] and files(tmp_path / 'out/vis') == ['good.png']
    assert 'in/narrow.png is skipped' in capsys.readouterr().err
    options['test_dataloader.dataset.pipeline.1.scale'] = (0, 0)
    with pytest.raises((cv2.error, ValueError)):
        predict(*model, str(tmp_path / 'square.png'), str(tmp_path / 'other'), 'cpu', cfg_options=options)


@pytest.mark.parametrize('name', NAMES)
def test_every_task_is_seen(name, tiny_model, pictures, tmp_path, capsys):
    out = tmp_path / 'out'
    for picture in PICTURES[1:]:
        (pictures / picture).unlink()
    assert visualize(*tiny_model(name), str(pictures), str(out), device='cpu') == [pictures / 'broken.jpg']
    assert 'Sheets of 1 of 2 images' in capsys.readouterr().out
    assert files(out / 'vis') == ['a.png']
    shares = json.loads((out / 'attention_share.json').read_text())
    assert list(shares) == [f'stages.{stage}.blocks.0.attn' for stage in range(4)] and min(shares.values()) > 0
    height, width = cv2.imread(str(out / 'vis/a.png')).shape[:2]
    assert 1400 < width < 1600 and height > 700  # five columns; features, and kernels of three stages
    with pytest.raises(UsageError, match='out is not empty'):
        visualize(*tiny_model(name), str(pictures), str(out))


@pytest.fixture
def tool(monkeypatch, capsys):
    """Runs a tool; gives its exit code, output and complaint."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, 'argv', [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / f'tools/{name}.py'), run_name='__main__')
        return (end.value.code, *capsys.readouterr())

    return run


@pytest.mark.parametrize('least', [0.25, 0.75])
def test_detections_are_drawn_from_a_score_on(least, tiny_model, pictures, tmp_path, monkeypatch):
    asked, images = [], {}

    def add_datasample(self, name, image, sample, **options):
        asked.append(options)
        images[name] = image

    monkeypatch.setattr(DetLocalVisualizer, 'add_datasample', add_datasample)
    predict(*tiny_model(NAMES[0]), str(pictures), str(tmp_path / 'out'), device='cpu', score_thr=least)
    assert {options['pred_score_thr'] for options in asked} == {least}
    assert (images['z.png'] == np.asarray(Image.open(pictures / 'z.png'))).all()  # whose colours begin with red


def test_classes_are_drawn_by_their_names(tiny_model, pictures, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(UniversalVisualizer, 'visualize_cls', lambda *args, **options: asked.append(options))
    predict(*tiny_model('soft_tiny_in1k'), str(pictures / 'a.jpg'), str(tmp_path / 'out'), 'cpu', save_pred=True)
    found = json.loads((tmp_path / 'out/preds/a.json').read_text())
    assert [options['classes'][found['pred_label']] for options in asked] == [found['pred_class']]


def test_the_tool_that_visualizes(tool, tiny_model, pictures, tmp_path):
    out = tmp_path / 'out'
    code, said, _ = tool(
        'visualize', *tiny_model('soft_tiny_in1k'), pictures / 'a.jpg', '--out-dir', out, '--stages', 0, 2
    )
    assert (
        code == 0 and files(out) == ['attention_share.json', 'vis/a.png'] and 'Sheets of 1 of 1 images are in' in said
    )


def test_stages_are_counted_from_0(tiny_model, pictures, tmp_path):
    for stages in ([0, 4], [-1]):
        with pytest.raises(UsageError, match='--stages are from 0 to 3'):
            visualize(*tiny_model('soft_tiny_in1k'), str(pictures), str(tmp_path / 'out'), stages=stages)
    with pytest.raises(UsageError, match='--device meta cannot be used'):
        visualize(*tiny_model('soft_tiny_in1k'), str(pictures), str(tmp_path / 'out'), device='meta')


def test_the_tool_says_so_when_a_picture_is_broken(tool, tiny_model, pictures, tmp_path):
    code, said, complaint = tool('predict', *tiny_model('soft_tiny_in1k'), pictures, '--out-dir', tmp_path / 'out')
    assert code == 1 and 'broken.jpg is skipped' in complaint
    assert f'Results of 4 of 5 images are in {tmp_path / "out"}.' in said
    assert files(tmp_path / 'out') == [f'vis/{picture}' for picture in PICTURES]


@pytest.mark.parametrize(
    'options, message',
    [
        (dict(source='nowhere'), 'no image or folder'),
        (dict(checkpoint='nowhere.pth'), 'nowhere.pth is not a file'),
        (dict(config='nowhere.py'), 'nowhere.py cannot be read as a config'),
        (dict(device='cuda:99'), '--device cuda:99 cannot be used'),
        (dict(device='meta'), '--device meta cannot be used'),
        (dict(config='upernet_soft_small_160k'), 'does not fit the config'),
    ],
)
def test_wrong_input_is_one_sentence(options, message, tiny_model, pictures, tmp_path):
    config, checkpoint = tiny_model('mask_rcnn_soft_tiny_1x')
    if options.get('config') in NAMES:
        options = dict(config=tiny_model(options['config'])[0])
    with pytest.raises(UsageError, match=message):
        predict(
            **dict(
                dict(config=config, checkpoint=checkpoint, source=str(pictures), out_dir=str(tmp_path / 'out')),
                **options,
            )
        )
    assert not (tmp_path / 'out').exists()


def test_nothing_is_overwritten(tiny_model, pictures, tmp_path):
    (tmp_path / 'out/vis').mkdir(parents=True)
    (tmp_path / 'out/vis/z.png').write_text('mine')
    with pytest.raises(UsageError, match='out is not empty'):
        predict(*tiny_model('soft_tiny_in1k'), str(pictures), str(tmp_path / 'out'))
    assert files(tmp_path / 'out') == ['vis/z.png']


def test_an_error_in_the_program_is_raised(tiny_model, pictures, tmp_path, monkeypatch):
    """Only broken images are skipped; what was done before is saved."""
    draw, drawn = Classification.draw, []

    def wrong(self, image, sample, path):
        if len(drawn) == 2:
            path.write_bytes(b'half a drawing')
            raise TypeError('of the program')
        drawn.append(path)
        draw(self, image, sample, path)

    monkeypatch.setattr(Classification, 'draw', wrong)
    with pytest.raises(TypeError, match='of the program'):
        predict(*tiny_model('soft_tiny_in1k'), str(pictures), str(tmp_path / 'out'), 'cpu', save_pred=True)
    assert len(files(tmp_path / 'out/preds')) == len(files(tmp_path / 'out/vis')) == 2


@pytest.mark.parametrize('other, drawn', [('b.png', 'a.png'), ('a.png', 'a.pgm.png')])
def test_grey_images_are_drawn_in_colour(tiny_model, tmp_path, other, drawn):
    """OpenCV writes no colours to .pgm."""
    (tmp_path / 'in').mkdir()
    for name in ('a.pgm', other):
        cv2.imwrite(str(tmp_path / 'in' / name), np.full((64, 64), 99, np.uint8))
    out, model = tmp_path / 'out', tiny_model('upernet_soft_small_160k')
    assert not predict(*model, str(tmp_path / 'in'), str(out), 'cpu', save_pred=True)
    assert files(out / 'vis') == sorted([drawn, other])
    assert files(out / 'preds') == sorted(Path(path).with_suffix('.png').name for path in files(out / 'vis'))
    assert np.ptp(cv2.imread(str(out / 'vis' / drawn)).astype(int), axis=-1).any(), 'no colours'
    assert not predict(*model, str(tmp_path / 'in/a.pgm'), str(tmp_path / 'alone'), 'cpu')
    assert files(tmp_path / 'alone') == ['vis/a.png']


def test_a_config_that_cannot_be_built_is_one_sentence(tiny_model, pictures, tmp_path):
    config, checkpoint = tiny_model('mask_rcnn_soft_tiny_1x')
    wrong = tmp_path / 'wrong.py'
    wrong.write_text(f"_base_ = '{config}'\nmodel = dict(neck=dict(num_out=5))")
    with pytest.raises(UsageError, match=r'wrong.py cannot be run \(TypeError: .*num_out'):
        predict(str(wrong), checkpoint, str(pictures), str(tmp_path / 'out'), 'cpu')


def test_a_model_without_a_backbone_of_its_own_is_not_visualized(tiny_model, pictures, tmp_path, monkeypatch):
    model = SimpleNamespace(inferencer=SimpleNamespace(model=torch.nn.Linear(1, 1)))
    monkeypatch.setattr(visualization, 'build_task', lambda *_: model)
    with pytest.raises(UsageError, match='config.py has no backbone of mmsoft'):
        visualize(*tiny_model('soft_tiny_in1k'), str(pictures), str(tmp_path / 'out'))


@pytest.mark.parametrize('run', [predict, visualize, export])
def test_options_override_the_config(run, tiny_model, pictures, tmp_path):
    places = [str(tmp_path / 'a.onnx')] if run is export else [str(pictures), str(tmp_path / 'out')]
    options = {'model.backbone.attention.bottleneck_limit': 3}
    with pytest.raises(UsageError, match='bottleneck_limit must be an integer, at least 4; got 3'):
        run(*tiny_model('soft_tiny_in1k'), *places, cfg_options=options)
    with pytest.raises(UsageError, match='config.py cannot be read as a config'):
        run(*tiny_model('soft_tiny_in1k'), *places, cfg_options={'model.backbone.arch.depths.9': 1})


def test_narrow_images_are_skipped(tiny_model, tmp_path):
    cv2.imwrite(str(tmp_path / 'narrow.png'), np.zeros((1, 1500, 3), np.uint8))
    for name in NAMES:
        broken = predict(*tiny_model(name), str(tmp_path / 'narrow.png'), str(tmp_path / name), 'cpu')
        assert broken == [tmp_path / 'narrow.png']


@pytest.mark.filterwarnings('ignore')
def test_segmentation_of_one_channel(tiny_model, pictures, tmp_path):
    """mmseg's labels are numbers then."""
    config, weights = tiny_model('upernet_soft_small_160k')
    one, changed = tmp_path / 'one.py', torch.load(weights, weights_only=True)
    loss = dict(type='CrossEntropyLoss', use_sigmoid=True)
    heads = ('decode_head', 'auxiliary_head')
    parts = {name: dict(num_classes=2, out_channels=1, threshold=0.5, loss_decode=loss) for name in heads}
    one.write_text(f"_base_ = '{config}'\nmodel = {parts!r}")
    for name in [f'{head}.conv_seg.{part}' for head in heads for part in ('weight', 'bias')]:
        changed['state_dict'][name] = changed['state_dict'][name][:1] - changed['state_dict'][name][1:2]
    torch.save(changed, tmp_path / 'one.pth')
    model = str(one), str(tmp_path / 'one.pth')
    assert predict(*model, str(pictures), str(tmp_path / 'out'), 'cpu', save_pred=True) == [pictures / 'broken.jpg']
    maps = [cv2.imread(str(path), -1) for path in (tmp_path / 'out/preds').glob('*.png')]
    assert {*np.concatenate([labels.ravel() for labels in maps])} == {0, 1}


def test_depth_is_no_label(tiny_model, pictures, tmp_path):
    config, weights = tiny_model('upernet_soft_small_160k')
    head = dict(_delete_=True, type='VPDDepthHead', in_channels=load_config(config).model.decode_head.in_channels)
    head.update(embed_dim=8, feature_dim=64, max_depth=10)
    depth = tmp_path / 'depth.py'
    depth.write_text(
        f"_base_ = '{config}'\nmodel = dict(type='DepthEstimator', auxiliary_head=None, decode_head={head})"
    )
    with pytest.raises(UsageError, match='do not draw and export depth: use mmseg.apis.MMSegInferencer'):
        predict(str(depth), weights, str(pictures), str(tmp_path / 'out'), 'cpu')


def test_a_match_is_no_class(tiny_model, pictures, tmp_path):
    config, weights = tiny_model('soft_tiny_in1k')
    cfg = load_config(config)
    encoder = dict(cfg.model.backbone.to_dict(), init_cfg=None)
    model = dict(_delete_=True, type='ImageToImageRetriever', image_encoder=[encoder], prototype='vectors.pth')
    retriever = tmp_path / 'retriever.py'
    retriever.write_text(f"_base_ = '{config}'\nmodel = {model!r}")
    says = 'do not draw and export matches: use mmpretrain.apis.ImageRetrievalInferencer'
    with pytest.raises(UsageError, match=says):
        predict(str(retriever), weights, str(pictures), str(tmp_path / 'out'), 'cpu')
    with pytest.raises(UsageError, match=says):
        export(str(retriever), weights, str(tmp_path / 'out.onnx'))


def test_several_tasks_of_a_classifier_are_not_drawn(tiny_model, pictures, tmp_path):
    config, weights = tiny_model('soft_tiny_in1k')
    tasks, (one, changed) = tmp_path / 'tasks.py', (load_config(config).model.head.to_dict(), torch.load(weights))
    head = dict(_delete_=True, type='MultiTaskHead', in_channels=one['in_channels'], task_heads=dict(a=one))
    pack = "[*_base_.test_dataloader.dataset.pipeline[:-1], dict(type='PackMultiTaskInputs', multi_task_fields=())]"
    loader = f'test_dataloader = dict(dataset=dict(pipeline={pack}))'
    tasks.write_text(f"_base_ = '{config}'\nmodel = dict(head={head!r})\n{loader}")
    for part in ('weight', 'bias'):
        changed['state_dict'][f'head.task_heads.a.fc.{part}'] = changed['state_dict'].pop(f'head.fc.{part}')
    torch.save(changed, tmp_path / 'tasks.pth')
    model, out = (str(tasks), str(tmp_path / 'tasks.pth'), str(pictures)), tmp_path / 'out'
    with pytest.raises(UsageError, match='export several tasks: use mmpretrain.apis.ImageClassificationInferencer'):
        predict(*model, str(out), 'cpu', save_pred=True)
    assert not out.exists()


@pytest.mark.parametrize('name', NAMES)
def test_the_pipeline_of_combined_data(name, tiny_model, pictures, tmp_path):
    """Inferencers look for it in the outermost data set."""
    config, weights = tiny_model(name)
    dataset = load_config(config).test_dataloader.dataset.to_dict()
    combined = dict(type='ConcatDataset', datasets=[dict(type='RepeatDataset', times=2, dataset=dataset)])
    wrapped, image = tmp_path / 'wrapped.py', str(pictures / 'a.jpg')
    text = f'dataset = {combined!r}\ntest_dataloader = dict(dataset=dict(_delete_=True, **dataset))'
    wrapped.write_text(f"_base_ = '{config}'\n{text}")
    for path, out in ((str(wrapped), tmp_path / 'a'), (config, tmp_path / 'b')):
        assert predict(path, weights, image, str(out), 'cpu', save_pred=True) == []
    (one,), (other,) = (list((tmp_path / place / 'preds').iterdir()) for place in 'ab')
    assert one.read_bytes() == other.read_bytes()


def test_images_that_are_loaded_otherwise(tiny_model, pictures, tmp_path):
    config, weights = tiny_model('upernet_soft_small_160k')
    options = {'test_dataloader.dataset.pipeline.0.color_type': 'grayscale'}
    with pytest.raises(UsageError, match="color_type='grayscale', and the tools read colours.*use mmseg.apis.MMSegInf"):
        predict(config, weights, str(pictures), str(tmp_path / 'out'), 'cpu', cfg_options=options)


def test_checkpoints_are_read_as_by_the_tools(tiny_model, tmp_path):
    config, weights = tiny_model('soft_tiny_in1k')
    state_dict = torch.load(weights, weights_only=True)['state_dict']
    save_file(state_dict, str(tmp_path / 'weights.safetensors'))
    compiled = {f'_orig_mod.{name}': tensor for name, tensor in state_dict.items()}
    torch.save(dict(state_dict=compiled, meta={}), tmp_path / 'compiled.pth')
    cfg = load_config(config)
    use_safe_loading(False)
    for name in ('weights.safetensors', 'compiled.pth'):
        model = build_task(cfg, str(tmp_path / name), 'cpu').inferencer.model
        assert all(torch.equal(tensor, state_dict[name]) for name, tensor in model.state_dict().items())
