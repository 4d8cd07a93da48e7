"""Draws the explanatory figures of the pages, as SVG in docs/images: ``python docs/figures/draw.py [PNG_FOLDER]``.

Needs only matplotlib. The figures hold no measured number. PNG_FOLDER gets a PNG of each, to look at.
"""

import sys
from pathlib import Path

import matplotlib
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

matplotlib.use('Agg')
import matplotlib.pyplot as plt

IMAGES = Path(__file__).parent.parent / 'images'
INK, MUTED = '#1f2430', '#5b6270'
QUERY, KEY, VALUE, BOTTLENECK, OUT = '#9ec5f4', '#f6c08a', '#a9d8a4', '#d3b4ec', '#d6dae1'
plt.rcParams.update({'font.family': 'DejaVu Sans', 'svg.fonttype': 'path', 'svg.hashsalt': 'mmsoft', 'text.color': INK})


def canvas(width, height, scale=0.1):
    figure = plt.figure(figsize=(width * scale, height * scale))
    axes = figure.add_axes([0, 0, 1, 1])
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis('off')
    return figure, axes


def save(figure, name):
    figure.savefig(IMAGES / f'{name}.svg', facecolor='white', metadata={'Date': None})
    for folder in sys.argv[1:]:
        figure.savefig(Path(folder, f'{name}.png'), facecolor='white', dpi=150)
    plt.close(figure)


def text(axes, x, y, words, size=9, color=INK, weight='normal', ha='center', **options):
    axes.text(x, y, words, fontsize=size, color=color, fontweight=weight, ha=ha, va='center', **options)


def matrix(axes, x, y, width, height, color, name, shape, edge=INK):
    """A matrix centred at height y: its name inside or above, its shape below."""
    axes.add_patch(Rectangle((x, y - height / 2), width, height, facecolor=color, edgecolor=edge, lw=0.9))
    text(axes, x + width / 2, y - height / 2 - 2.3, name, 10)
    text(axes, x + width / 2, y + height / 2 + 2.3, shape, 8, MUTED)
    return x + width


def box(axes, x, y, width, height, words, color, size=9, weight='normal'):
    axes.add_patch(
        FancyBboxPatch(
            (x, y), width, height, boxstyle='round,pad=0,rounding_size=1', facecolor=color, edgecolor=INK, lw=0.8
        )
    )
    text(axes, x + width / 2, y + height / 2, words, size, weight=weight, linespacing=1.35)


def arrow(axes, start, end, **options):
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle='-|>', mutation_scale=9, color=INK, lw=0.9, **options))


def attention():
    """Softmax, SOFT and SimA attention of one head side by side, with the shapes of what is multiplied."""
    n, m, d, y, width = 26, 8, 5, 35, 62
    figure, axes = canvas(3 * width, 82, 0.05)

    def panel(column, title, formula, cost, example, *notes):
        left = column * width
        axes.add_patch(Rectangle((left + 1, 1), width - 2, 80, facecolor='none', edgecolor='#c9ced8', lw=0.8))
        text(axes, left + width / 2, 5, title, 12, weight='bold')
        text(axes, left + width / 2, 11, formula, 10)
        text(axes, left + width / 2, 57.5, cost, 9.5, weight='bold')
        text(axes, left + width / 2, 76, example, 8.2, style='italic')
        for line, note in enumerate(notes):
            text(axes, left + width / 2, 62.5 + 4 * line, note, 8.2, MUTED)
        return left

    left = panel(
        0,
        'Softmax attention',
        r'$O=\mathrm{softmax}(QK^{\top}\!/\sqrt{d})\,V$',
        'quadratic in n',
        'n = 3136, d = 32: 9.8 million entries a head',
        'every token is compared with every other;',
        'each row is divided by its sum',
    )
    x = matrix(axes, left + 6.5, y, n, n, '#f3d3d3', r'softmax$(QK^{\top}\!/\sqrt{d})$', 'n × n')
    x = matrix(axes, x + 3.5, y, d, n, VALUE, r'$V$', 'n × d')
    text(axes, x + 4.5, y, '=', 13)
    matrix(axes, x + 9, y, d, n, OUT, r'$O$', 'n × d')

    left = panel(
        1,
        'SOFT',
        r'$O=P^{\top}A^{-1}P\,V,\quad P_{ij}=\exp(-\|\tilde q_i-q_j\|^2/2)$',
        'linear in n for a fixed m',
        'm = 49: 156 thousand entries a head',
        r'$\tilde Q$: m bottleneck tokens, sampled from $Q$ ($K=Q$);',
        'products run from right to left, no n×n matrix',
    )
    x = matrix(axes, left + 3.5, y, m, n, BOTTLENECK, r'$P^{\top}$', 'n × m')
    x = matrix(axes, x + 2, y, m, m, '#b98fdc', r'$A^{-1}$', 'm × m')
    x = matrix(axes, x + 2, y, n - 7, m, BOTTLENECK, r'$P$', 'm × n')
    x = matrix(axes, x + 2, y, d - 1, n, VALUE, r'$V$', 'n × d')
    text(axes, x + 3, y, '=', 13)
    matrix(axes, x + 6, y, d - 1, n, OUT, r'$O$', 'n × d')

    left = panel(
        2,
        'SimA',
        r'$O=\hat Q\,(\hat K^{\top}V),\quad \hat Q=Q/\|Q\|_1,\ \hat K=K/\|K\|_1$',
        'linear in n',
        '1024 entries a head',
        'columns of Q and K are divided by their ℓ1 norms;',
        'for n < d the order is (Q̂ K̂ᵀ) V instead',
    )
    x = matrix(axes, left + 5, y, d, n, QUERY, r'$\hat Q$', 'n × d')
    text(axes, x + 2.5, y, '(', 22)
    x = matrix(axes, x + 5, y, n - 5, d, KEY, r'$\hat K^{\top}$', 'd × n')
    x = matrix(axes, x + 2, y, d, n, VALUE, r'$V$', 'n × d')
    text(axes, x + 2, y, ')', 22)
    text(axes, x + 5.5, y, '=', 13)
    matrix(axes, x + 8.5, y, d, n, OUT, r'$O$', 'n × d')
    save(figure, 'attention')


def architecture():
    """A detector with SOFT: image, four stages with strides and channels, neck, head."""
    figure, axes = canvas(186, 58, 0.053)
    top, colors = 16, ['#dbeafc', '#c3dcf8', '#a8caf2', '#f6d7b0']
    box(axes, 2, top, 17, 22, 'image\n3 × H × W\n\n800×1344', '#eef0f4', 8.5)
    names = [
        ('stage 0', 'stride 4', 64, 'SOFT'),
        ('stage 1', 'stride 8', 128, 'SOFT'),
        ('stage 2', 'stride 16', 320, 'SOFT'),
        ('stage 3', 'stride 32', 512, 'softmax'),
    ]
    text(axes, 70, 4, "backbone: mmsoft.SOFT(arch='small')", 10.5, weight='bold')
    text(
        axes,
        70,
        9,
        'a stage = overlapping convolution (stride 4 or 2) + position embedding + attention blocks',
        8.3,
        MUTED,
    )
    blocks = [1, 3, 7, 4]
    for index, (name, stride, channels, kind) in enumerate(names):
        x = 26 + 23 * index
        box(
            axes, x, top, 19, 22, f'{name}\n{stride}\n{channels} channels\n{blocks[index]} × {kind}', colors[index], 8.3
        )
        arrow(axes, (x - 4 if index else 19, top + 11), (x, top + 11))
        arrow(axes, (x + 9.5, top + 22), (x + 9.5, top + 30))
        text(axes, x + 9.5, top + 33, f'{channels}×H/{4 * 2**index}×W/{4 * 2**index}', 7.8, MUTED)
    axes.plot([35.5, 104.5], [52.5, 52.5], color=INK, lw=0.9)
    for index in range(4):
        axes.plot([35.5 + 23 * index] * 2, [51, 52.5], color=INK, lw=0.9)
    arrow(axes, (104.5, 52.5), (129.5, 38), connectionstyle='angle,angleA=0,angleB=90,rad=2', shrinkA=0)
    box(axes, 120, top, 19, 22, 'neck\nFPN, or\nRescalePyramid\n+ FPN', '#d9efd6', 8.3)
    arrow(axes, (139, top + 11), (146, top + 11))
    box(
        axes,
        146,
        top,
        37,
        22,
        'head of mmdet or\nmmsegmentation\n\nRetinaNet, Mask R-CNN,\nATSS, UperNet, …',
        '#eef0f4',
        8.3,
    )
    text(
        axes,
        159,
        47,
        'SimA-XCiT and SimA-DeiT have maps of one stride\n(8 or 16): RescalePyramid makes four of them.\n'
        'Classifiers take the class token of stage 3.',
        7.8,
        MUTED,
        linespacing=1.4,
    )
    save(figure, 'architecture')


def layers():
    """The packages of mmsoft and the direction of their imports."""
    figure, axes = canvas(124, 62, 0.055)
    rows = [
        ('command lines', [('tools', '#eef0f4'), ('benchmarks', '#eef0f4'), ('projects', '#eef0f4')]),
        ('around a network', [('apis', '#f9e6cf'), ('datasets', '#f9e6cf'), ('timm', '#f9e6cf')]),
        ('training', [('engine', '#f6d7b0')]),
        ('networks', [('backbones', '#c3dcf8'), ('necks', '#c3dcf8'), ('checkpoint', '#c3dcf8')]),
        ('parts', [('attention', '#d9efd6'), ('layers', '#d9efd6')]),
        ('mathematics', [('ops', '#e4d3f3')]),
        ('base', [('utils', '#eef0f4'), ('registry', '#eef0f4')]),
    ]
    for row, (title, boxes) in enumerate(rows):
        y = 2 + 8.4 * row
        text(axes, 27, y + 3.4, title, 9, MUTED, ha='right')
        for column, (name, color) in enumerate(boxes):
            box(axes, 31 + 27 * column, y, 25, 6.8, name, color, 9)
    arrow(axes, (117, 3), (117, 59))
    axes.text(120, 31, 'imports', fontsize=9, rotation=270, va='center', ha='center', color=MUTED)
    save(figure, 'layers')


def export():
    """Two ways out of PyTorch: a whole model by the tool, a backbone or neck by torch.export in Python."""
    figure, axes = canvas(176, 66, 0.056)

    def row(y, height, start, network, exporter, file, runtime):
        box(axes, 2, y - 6, 24, 12, start, '#eef0f4', 8.5)
        box(axes, 32, y - height / 2, 36, height, network, '#c3dcf8', 8)
        box(axes, 74, y - 5, 24, 10, exporter, '#d9efd6', 8.5)
        box(axes, 104, y - 5, 24, 10, file, '#f6d7b0', 8.5)
        box(axes, 136, y - 5, 37, 10, runtime, '#eef0f4', 8.5)
        for begin, end in ((26, 32), (68, 74), (98, 104), (128, 136)):
            arrow(axes, (begin, y), (end, y))

    text(axes, 2, 3, 'python tools/export.py CONFIG CHECKPOINT --out model.onnx', 9, weight='bold', ha='left')
    network = 'a whole model:\nplain formulas in place of\nfused kernels; boxes decoded\nand suppressed inside'
    runtimes = 'ONNX Runtime, and other\nruntimes of ONNX'
    row(17, 20, 'CONFIG and\nCHECKPOINT', network, 'torch.onnx', 'model.onnx\nopset 17', runtimes)
    check = 'check before the file is kept: equal results\nfor other images, and at other sizes'
    box(axes, 32, 34, 64, 9, check, '#f3d3d3', 8.5)
    about = 'inside the file, as JSON: mean, std, padding,\nthe test pipeline, names of the classes'
    box(axes, 104, 34, 69, 9, about, '#e4d3f3', 8.5)
    arrow(axes, (118, 34), (118, 22))
    arrow(axes, (50, 27), (50, 34))
    arrow(axes, (108, 22), (92, 34))
    axes.plot([2, 173], [47.5, 47.5], color='#c9ced8', lw=0.8)
    text(axes, 2, 50.5, 'in Python, without a tool: torch.export.export(backbone, …)', 9, weight='bold', ha='left')
    row(59.5, 9, 'SOFT(…).eval()', 'a backbone or neck', 'torch.export', 'a program (.pt2)', 'PyTorch')
    save(figure, 'export')


if __name__ == '__main__':
    export()
    attention()
    architecture()
    layers()
