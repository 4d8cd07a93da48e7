"""Time and memory against the number of tokens."""
from pathlib import Path
from typing import List, Sequence

from .benchmark import Record, pass_name, size_name
from .contenders import ENTRANTS

_COLORS = {
    'SOFT': '#d62728',
    'SOFT, fixed bottleneck': '#ff7f0e',
    'SOFT as published': '#7f7f7f',
    'SimA': '#2ca02c',
    'XCiT': '#98c379',
    'PVT': '#1f77b4',
    'Swin': '#9467bd',
    'ResNet': '#17202a',
}
_QUANTITIES = dict(time=('median', 1, 'seconds'), memory=('memory', 1e-6, 'peak memory above the weights, MB'))


def plot_costs(records: Sequence[Record], out_dir: Path) -> List[Path]:
    """Draws ``time.png`` and ``memory.png``, a panel a pass, both axes logarithmic.

    Args:
        records (Sequence[Record]): What was measured.
        out_dir (Path): Folder that exists.

    Returns:
        list[Path]: Files that were written; a quantity that nothing is known of has none.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paths = []
    for name, (quantity, scale, label) in _QUANTITIES.items():
        known = [record for record in records if getattr(record, quantity)]
        if not known:
            continue
        passes = sorted({record.backward for record in known})
        figure = Figure(figsize=(5.2 * len(passes) + 2.6, 5), layout='constrained')
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(passes), sharey=True, squeeze=False)[0]
        for panel, backward in zip(panels, passes):
            _draw(panel, [record for record in known if record.backward == backward], quantity, scale)
            panel.set_title(pass_name(backward))
        panels[0].set_ylabel(label)
        lines = {line.get_label(): line for panel in panels for line in panel.get_lines()}
        figure.legend(handles=list(lines.values()), loc='outside right center', frameon=False, fontsize=9)
        paths.append(out_dir / f'{name}.png')
        figure.savefig(paths[-1], dpi=150)
    return paths


def _draw(panel, records: Sequence[Record], quantity: str, scale: float) -> None:
    sizes = {record.tokens: record.size for record in records}
    for model, contender in ENTRANTS.items():
        points = [(r.tokens, getattr(r, quantity) * scale) for r in records if r.model == model]
        if points:
            panel.plot(
                *zip(*sorted(points)),
                color=_COLORS[contender.family],
                linestyle='--' if 'Tiny' in contender.label else '-',
                marker='s' if 'Norm' in contender.label else 'o',
                markersize=4,
                linewidth=1.6,
                label=contender.label)
    panel.set_xscale('log')
    panel.set_yscale('log')
    names = [f'{tokens / 1000:.3g}k\n{size_name(size)}' for tokens, size in sizes.items()]
    panel.set_xticks(list(sizes), names, fontsize=8)
    panel.set_xticks([], minor=True)
    panel.set_xlabel('tokens of stride 4, image')
    panel.grid(alpha=0.3, which='major')
    panel.spines[['top', 'right']].set_visible(False)
