"""How many exponentials a forward pass takes (2206.08898, Table 1)."""
from collections import Counter
from math import prod
from typing import Dict

import pandas as pd
import torch
from matplotlib.figure import Figure
from mmengine.registry import MODELS
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..common import be_quiet
from ..contenders import CONTENDERS
from .inputs import BLUE, NETWORKS, ORANGE, Inputs, new_figure, plain

TITLE = 'Exponentials in a forward pass'
SIDE = 224
KINDS = {
    'in attention': (BLUE, 0.2, ('exp', 'exp2', 'expm1', 'softmax', 'log_softmax')),
    'in activations': (ORANGE, -0.2, ('gelu', 'silu', 'erf', 'sigmoid', 'tanh', 'mish', 'elu', 'softplus')),
}
"""Colour and place of a bar, and the operators that it counts."""


def _with(cfg: dict, attention: str) -> dict:
    return dict(cfg, attention=dict(type=attention))


_SIMA, _XCIT, _SOFT = NETWORKS['sima_deit'], CONTENDERS['sima_xcit_small'].backbone, NETWORKS['soft']
MODELS_AND_FORMULAS = {
    'DeiT-S': (NETWORKS['deit'], 'hN²'),
    'DeiT-S→SimA': (_SIMA, '0'),
    'DeiT-S→SimA, ReLU': (dict(_SIMA, act_cfg=dict(type='ReLU')), '0'),
    'XCiT-S12/16': (CONTENDERS['xcit_small'].backbone, 'D²/h'),
    'XCiT-S12/16→efficient attention': (_with(_XCIT, 'EfficientAttention'), '2ND'),
    'XCiT-S12/16→CosFormer': (_with(_XCIT, 'CosFormerAttention'), '0'),
    'XCiT-S12/16→SimA': (_XCIT, '0'),
    'PVT-S': (CONTENDERS['pvt_small'].backbone, 'hN²/R²'),
    'Swin-T': (CONTENDERS['swin_tiny'].backbone, 'hNM²'),
    'SOFT-Tiny→Transformer': (NETWORKS['softmax'], 'hN²'),
    'SOFT-Tiny→Linformer': (_with(_SOFT, 'LinformerAttention'), 'hNm'),
    'SOFT-Tiny→Performer': (NETWORKS['performer'], '2hNr'),
    'SOFT-Tiny→Nyströmformer': (NETWORKS['nystromformer'], 'h(2Nm + m²)'),
    'SOFT-Tiny': (_SOFT, 'h(2Nm + m²)'),
}
"""Backbones, and what the attention of one of their layers takes: N tokens, D channels, h heads, m bottleneck tokens,
r features, M² tokens in a window, R² that become one."""


class ExponentialCounter(TorchDispatchMode):
    """Counts the elements that operators exponentiate, by the operators' names, in :attr:`counts`.

    A fused attention kernel counts as the softmax that it replaces.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._overloadpacket.__name__.strip('_').replace('safe_softmax', 'softmax')
        if name.startswith('scaled_dot_product') and 'backward' not in name:
            self.counts['softmax'] += prod(args[0].shape[:-1]) * args[1].size(-2)
        elif any(name in operators for _, _, operators in KINDS.values()):
            self.counts[name] += tree_leaves(out)[0].numel()
        return out


@torch.no_grad()
def count(network: nn.Module, side: int) -> Dict[str, int]:
    """Exponentials for one image of ``side`` rows and columns, by operator."""
    network.eval()  # which returns nothing in some libraries
    with ExponentialCounter() as mode:
        network(torch.zeros(1, 3, side, side))
    return dict(mode.counts)


def measure(inputs: Inputs) -> pd.DataFrame:
    """``in attention`` and ``in activations`` of each ``model``, and the ``formula`` of a layer's attention."""
    be_quiet()
    rows = []
    for name, (cfg, formula) in list(MODELS_AND_FORMULAS.items())[:2 if inputs.quick else None]:
        counts = count(MODELS.build(cfg), 64 if inputs.quick else SIDE)
        kinds = {kind: sum(counts.get(operator, 0) for operator in KINDS[kind][2]) for kind in KINDS}
        rows.append(dict(model=name, **kinds, formula=formula))
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, inputs: Inputs) -> Figure:
    """Bars, the longest at the top."""
    figure, ((panel, ), ) = new_figure(1, 1, 8.5, 0.42 * len(table) + 1.3, f'{TITLE}, one image of {SIDE}×{SIDE}')
    table = table.sort_values([*KINDS]).reset_index(drop=True)
    for kind, (colour, offset, _) in KINDS.items():
        bars = panel.barh(table.index + offset, table[kind] / 1e6, 0.38, color=colour, label=kind)
        labels = [f'{value / 1e6:.2f}' if value else 'none' for value in table[kind]]
        panel.bar_label(bars, labels, padding=3, fontsize=8, color=colour)
    names = [f'{row.model}\n{row.formula} a layer' if row.formula != '0' else row.model for row in table.itertuples()]
    panel.set_yticks(table.index, names, fontsize=9)
    plain(panel, xlabel='millions', xlim=(0, 1.12 * table[[*KINDS]].to_numpy().max() / 1e6))
    panel.legend(frameon=False, loc='lower right')
    return figure
