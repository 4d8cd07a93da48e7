"""Which pictures are found, and how they are read."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import mmcv
import pytest
from mmdet.apis.det_inferencer import IMG_EXTENSIONS
from mmengine.config import Config
from PIL import EpsImagePlugin, Image

from mmsoft.apis.prediction import SUFFIXES, BrokenImage, find_images, find_inputs, prepare, read_image, result_names
from mmsoft.utils import UsageError


def test_links_and_pipes_are_found_and_refused(tmp_path):
    picture = tmp_path / 'a b\n.PNG'
    Image.new('RGB', (4, 3), (255, 0, 0)).save(picture)
    (tmp_path / 'circle.png').symlink_to('circle.png')
    (tmp_path / 'back').symlink_to(tmp_path)
    (tmp_path / 'folder.png').mkdir()
    subprocess.run(['mkfifo', str(tmp_path / 'pipe.jpg')], check=True)
    found = list(find_images(str(tmp_path)))
    assert found == [picture, tmp_path / 'circle.png', tmp_path / 'pipe.jpg']
    assert read_image(picture).tolist() == [[[0, 0, 255]] * 4] * 3
    for path in found[1:]:
        with pytest.raises(BrokenImage, match='it is not a file|symbolic links'):
            read_image(path)


def test_no_name_is_no_folder(tmp_path, monkeypatch):
    """As of a variable of the shell that is not set."""
    Image.new('L', (4, 3)).save(tmp_path / 'x.png')
    monkeypatch.chdir(tmp_path)
    assert len(find_images('.')) == 1
    with pytest.raises(UsageError, match='no image or folder'):
        find_images('')
    with pytest.raises(UsageError, match='^. is not empty, and nothing there is overwritten; choose another --out-dir'):
        find_inputs(Config(), 'x.png', '')
    assert [*find_inputs(Config(), 'x.png', 'new')] == [Path('x.png')]


def test_what_opencv_does_not_read_pillow_does(tmp_path):
    frames = [Image.new('RGB', (4, 3), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    for name in ('x.webp', 'x.gif'):  # a new OpenCV reads the first
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], lossless=True)
        assert read_image(tmp_path / name).tolist() == [[[0, 0, 255]] * 4] * 3


def test_pictures_are_turned_as_the_hosts_turn_them(tmp_path, monkeypatch):
    exif = Image.Exif()
    exif[0x112] = 6
    Image.new('L', (40, 20)).save(tmp_path / 'x.jpg', exif=exif)
    assert read_image(tmp_path / 'x.jpg').shape == (40, 20, 3)
    monkeypatch.setattr(mmcv, 'imfrombytes', lambda data: None)  # so Pillow reads it
    assert read_image(tmp_path / 'x.jpg').shape == (40, 20, 3)


@pytest.mark.parametrize('mode', ['F', 'I'])
def test_pixels_of_more_than_8_bits_are_refused(tmp_path, mode):
    """Which Pillow would turn black or white."""
    Image.new(mode, (4, 3), 1).save(tmp_path / 'x.tif')
    with pytest.raises(BrokenImage, match=f'another kind than 8 bits, {mode}'):
        read_image(tmp_path / 'x.tif')


def test_whatever_is_read_is_found(tmp_path):
    for name in ('a.gif', 'b.jfif'):
        Image.new('RGB', (4, 3), (255, 0, 0)).save(tmp_path / name, 'GIF' if name == 'a.gif' else 'JPEG')
    found = find_images(str(tmp_path))
    assert [path.name for path in found] == ['a.gif', 'b.jfif']
    assert [str(path) for path in found.values()] == ['a.png', 'b.png']
    assert all(read_image(path).shape == (3, 4, 3) for path in found)


def test_images_of_all_kinds_that_mmdet_finds(tmp_path):
    kinds = Image.registered_extensions()
    for suffix in SUFFIXES:
        Image.new('RGB', (4, 3)).save(tmp_path / f'x{suffix}', kinds[suffix])
    found = find_images(str(tmp_path))
    assert {path.suffix for path in found} == {*SUFFIXES} >= {*IMG_EXTENSIONS}
    assert all(read_image(path).shape == (3, 4, 3) for path in found)


def test_one_image_may_have_any_name(tmp_path):
    for name, drawn in {'photo': 'photo.png', 'A.JPG': 'A.JPG', 'b.GIF': 'b.png'}.items():
        Image.new('L', (4, 3)).save(tmp_path / name, 'PNG')
        assert find_images(str(tmp_path / name)) == {tmp_path / name: Path(drawn)}


def test_how_narrow_an_image_may_be(tmp_path):
    Image.new('L', (1, 1000)).save(tmp_path / 'x.png')
    assert read_image(tmp_path / 'x.png').shape == (1000, 1, 3)
    Image.new('L', (1001, 1)).save(tmp_path / 'x.png')
    with pytest.raises(BrokenImage, match='1001x1 pixels are too narrow'):
        read_image(tmp_path / 'x.png')


def test_a_broken_image_is_told_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mmcv, 'imfrombytes', lambda data: (_ for _ in ()).throw(MemoryError))  # which has no text
    path, broken = tmp_path / 'a\nb.png', []
    Image.new('L', (4, 3)).save(path)
    assert not list(prepare(SimpleNamespace(), [path], broken)) and broken == [path]
    said = capsys.readouterr().err
    assert (
        said.endswith(r'a\nb.png is skipped, it cannot be read as an image: MemoryError' + '\n')
        and said.count('\n') == 1
    )


def test_no_drawing_replaces_another(tmp_path):
    for name in ('b.gif', 'b.gif.png', 'b.tif'):
        (tmp_path / name).touch()
    assert [str(name) for name in find_images(str(tmp_path)).values()] == ['b.gif.png', 'b.gif.png.png', 'b.tif.png']


def test_no_program_is_started_for_a_picture(tmp_path, monkeypatch):
    """Pillow opens PostScript by Ghostscript, whatever the file is called."""
    started = []
    monkeypatch.setattr(
        EpsImagePlugin, 'Ghostscript', lambda *args, **kwargs: started.append(1) or Image.new('L', (9, 9)).im
    )
    path = tmp_path / 'x.png'
    path.write_bytes(b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n')
    with pytest.raises(BrokenImage, match='format is unknown'):
        read_image(path)
    assert not started
    with Image.open(path) as picture:
        picture.load()
    assert started, 'the test proves nothing'


def test_names_of_results_are_unique_and_end_in_one_suffix():
    names = [Path(name) for name in ('a.jpg', 'b/a.png', 'b/a.jpg', 'b/a.jpg.tif', 'c.d.jpg', 'x.png')]
    found = result_names({Path('in', name): name for name in names}, '.png')
    assert [*found] == [Path('in', name) for name in names]
    assert [name.as_posix() for name in found.values()] == [
        'a.png',
        'b/a.png.png',
        'b/a.jpg.png',
        'b/a.jpg.tif.png',
        'c.d.png',
        'x.png',
    ]
