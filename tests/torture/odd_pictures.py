"""Pictures as nobody expects them, each with whether it can be predicted."""

import io
import os
import struct
import zlib

import numpy as np
from PIL import Image


def noise(rng, height, width, channels=3, dtype=np.uint8):
    shape = (height, width, channels) if channels else (height, width)
    return rng.integers(0, np.iinfo(dtype).max, shape, dtype)


def encoded(picture, form, **options):
    data = io.BytesIO()
    picture.save(data, form, **options)
    return data.getvalue()


def photo(rng, form='PNG', mode='RGB', **options):
    height, width = rng.integers(20, 90, 2)
    return encoded(Image.fromarray(noise(rng, height, width)).convert(mode), form, **options)


def size(height, width):
    return lambda rng: encoded(Image.fromarray(noise(rng, height, width)), 'PNG')


def sixteen_bits(rng):
    return encoded(Image.fromarray(noise(rng, 40, 50, 0, np.uint16)), 'PNG')


def bomb(rng):
    """Few bytes that say 20000×20000, and are that."""

    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))

    rows = zlib.compress(bytes(20001 * 100), 9) if rng.random() < 0.5 else b''
    return (
        b'\x89PNG\r\n\x1a\n'
        + chunk(b'IHDR', struct.pack('>IIBBBBB', 20000, 20000, 8, 0, 0, 0, 0))
        + chunk(b'IDAT', rows)
        + chunk(b'IEND', b'')
    )


def turned(rng):
    exif = Image.Exif()
    exif[0x112] = int(rng.integers(2, 9))
    return photo(rng, 'JPEG', exif=exif)


def animated(form):

    def make(rng):
        frames = [Image.fromarray(noise(rng, 32, 48)) for _ in range(3)]
        return encoded(frames[0], form, save_all=True, append_images=frames[1:])

    return make


def palette_with_alpha(rng):
    return encoded(Image.fromarray(noise(rng, 40, 50)).quantize(7), 'PNG', transparency=0)


def cut(rng):
    data = photo(rng, rng.choice(['PNG', 'JPEG', 'BMP', 'TIFF']))
    return data[: int(len(data) * rng.uniform(0.05, 0.9))]


def flipped(rng):
    data = bytearray(photo(rng, rng.choice(['PNG', 'JPEG', 'BMP', 'TIFF', 'WEBP'])))
    for _ in range(rng.integers(1, 20)):
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    return bytes(data)


POSTSCRIPT = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\n(ran) (w) file closefile\nshowpage\n'

NARROW = {'one row': size(1, 5000), 'one column': size(5000, 1)}  # pipelines would shrink the short side to nothing
GOOD = {
    'one pixel': size(1, 1),
    'two by two': size(2, 2),
    'grey': lambda rng: photo(rng, mode='L'),
    'one bit': lambda rng: photo(rng, mode='1'),
    'palette': lambda rng: photo(rng, mode='P'),
    'palette with alpha': palette_with_alpha,
    'alpha': lambda rng: photo(rng, mode='RGBA'),
    'grey with alpha': lambda rng: photo(rng, mode='LA'),
    '16 bits': sixteen_bits,
    'CMYK': lambda rng: photo(rng, 'JPEG', 'CMYK'),
    'EXIF': turned,
    'progressive': lambda rng: photo(rng, 'JPEG', progressive=True),
    'grey JPEG': lambda rng: photo(rng, 'JPEG', 'L'),
    'animated PNG': animated('PNG'),
    'animated WEBP': animated('WEBP'),
    'pages': animated('TIFF'),
    'GIF': animated('GIF'),
    'WEBP': lambda rng: photo(rng, 'WEBP'),
    'BMP': lambda rng: photo(rng, 'BMP'),
    'PPM': lambda rng: photo(rng, 'PPM'),
    'trailing bytes': lambda rng: photo(rng) + rng.bytes(500),
}
BAD = {
    'bomb': bomb,
    'cut': cut,
    'empty': lambda rng: b'',
    'text': lambda rng: b'<html>Not Found</html>',
    'random bytes': lambda rng: rng.bytes(999),
    'PostScript': lambda rng: POSTSCRIPT,
    'header alone': lambda rng: photo(rng)[:33],
    'floats': lambda rng: photo(rng, 'TIFF', 'F'),  # whose range nothing tells
}
EITHER = {'flipped bits': flipped}
NAMES = [
    'a b',
    'ü名',
    'a\nb',
    '-x',
    '%s{}',
    '$HOME',
    "it's",
    '"',
    '\x1b[31m',
    'x' * 200,
    '~',
    'a.b.c',
    '\udcff',
    '*',
    '#',
]
SUFFIXES = ['.png', '.jpg', '.JPEG', '.bmp', '.webp', '.tif', '.ppm', '.PNG']


def fill(folder, rng):
    """A folder with a picture of each kind under an odd name, often of another suffix.

    Args:
        folder (Path): Where to.
        rng (np.random.Generator): Decides the details.

    Returns:
        tuple[set, set]: Paths that can be predicted, and paths that cannot.
    """
    good, bad = set(), set()
    for number, (kind, make) in enumerate({**NARROW, **GOOD, **BAD, **EITHER}.items()):
        below = folder / str(rng.choice(['.', 'deep', 'deep/er']))
        below.mkdir(parents=True, exist_ok=True)
        path = below / f'{number:02} {kind} {rng.choice(NAMES)}{rng.choice(SUFFIXES)}'
        path.write_bytes(make(rng))
        (good if kind in GOOD else set() if kind in EITHER else bad).add(path)
    (folder / 'back').symlink_to(folder)
    for name, target in {'circle.png': 'circle2.png', 'circle2.png': 'circle.png', 'nowhere.jpg': 'nothing'}.items():
        (folder / name).symlink_to(target)
        bad.add(folder / name)
    (folder / 'folder.png').mkdir()
    os.mkfifo(folder / 'pipe.png')
    bad.add(folder / 'pipe.png')
    (folder / 'link.png').symlink_to(next(iter(good)))
    good.add(folder / 'link.png')
    return good, bad
