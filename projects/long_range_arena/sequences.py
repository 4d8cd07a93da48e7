"""Data sets of sequences that are generated from a seed, and a classifier for them."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.dataset import BaseDataset
from mmengine.dist import barrier, is_main_process
from mmengine.logging import print_log
from mmengine.model import BaseDataPreprocessor, BaseModel
from mmengine.registry import DATA_SAMPLERS, MODELS
from mmpretrain.structures import DataSample
from torch import Tensor, nn
from torch.utils.data import Sampler

from mmsoft.attention import Attention, Site, build_attention
from mmsoft.layers.xcit import attend_inside
from mmsoft.utils.files import atomic_write


class Sequences(BaseDataset):
    """Sequences of small numbers with a class each; a subclass draws them. They are generated once and kept in a file.

    Args:
        kind (str): Name of the file.
        count (int): Number of sequences.
        split (str): Sequences of different splits come from different seeds.
        folder (str): Where the file is.
        together (int): So many sequences of one length make a sample to train on, which needs no padding and loads as
            fast as a single one; the last ones of a length may be fewer.
    """

    def __init__(
        self, kind: str, count: int, split: str, folder: str = 'data/long_range_arena', together: int = 0
    ) -> None:
        self.count, self.split, self.path = count, split, Path(folder, f'{kind}_{split}_{count}.npz')
        self.together = together
        super().__init__(serialize_data=False)

    def draw(self, rng: random.Random) -> tuple[list[int], int]:
        """A sequence and its class."""
        raise NotImplementedError

    def load_data_list(self) -> list[dict]:
        """Reads the sequences; generates them the first time."""
        if is_main_process() and not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            rng = random.Random(self.split)
            drawn = []
            for number in range(1, self.count + 1):
                drawn.append(self.draw(rng))
                if number % max(self.count // 10, 1000) == 0:
                    print_log(f'Generating {self.path}: {number} of {self.count}', 'current')
            with atomic_write(self.path) as file:
                np.savez_compressed(
                    file,
                    tokens=np.concatenate([np.asarray(tokens, np.uint8) for tokens, _ in drawn]),
                    lengths=np.array([len(tokens) for tokens, _ in drawn]),
                    labels=np.array([label for _, label in drawn]),
                )
        barrier()
        kept = np.load(self.path)
        lengths, labels = kept['lengths'], kept['labels']
        pieces = np.split(kept['tokens'], lengths.cumsum()[:-1])
        if not self.together:
            return [dict(tokens=tokens, gt_label=int(label)) for tokens, label in zip(pieces, labels)]
        equal = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
        groups = [some[i : i + self.together] for some in equal for i in range(0, len(some), self.together)]
        return [dict(tokens=np.stack([pieces[i] for i in group]), gt_label=labels[group]) for group in groups]


@DATA_SAMPLERS.register_module()
class EqualLengths:
    """Batches of sequences of one length each, which need no padding; the last ones of a length may be fewer.

    Args:
        sampler (Sampler): Where the indices of sequences come from.
        batch_size (int): Sequences in a batch.
    """

    def __init__(self, sampler: Sampler, batch_size: int) -> None:
        self.sampler, self.batch_size = sampler, batch_size
        self.lengths = [len(one['tokens']) for one in sampler.dataset]

    def __iter__(self) -> Iterator[list[int]]:
        waiting: dict[int, list[int]] = {}
        for index in self.sampler:
            batch = waiting.setdefault(self.lengths[index], [])
            batch.append(index)
            if len(batch) == self.batch_size:
                yield waiting.pop(self.lengths[index])
        yield from waiting.values()

    def __len__(self) -> int:
        return sum(-(-count // self.batch_size) for count in Counter(self.lengths).values())


@MODELS.register_module()
class PadSequences(BaseDataPreprocessor):
    """Pads the sequences of a batch to the longest: tokens (B, n) of int64, their lengths, and their classes.

    Classes are a tensor in training, and data samples otherwise. Some items of a batch may be several sequences.
    """

    def forward(self, data: dict, training: bool = False) -> dict:
        """See mmengine's BaseDataPreprocessor."""
        tokens = [torch.from_numpy(np.asarray(row, np.int64)) for one in data['tokens'] for row in np.atleast_2d(one)]
        labels = np.concatenate([np.atleast_1d(label) for label in data['gt_label']])
        lengths = [len(one) for one in tokens]
        samples = torch.from_numpy(labels) if training else [DataSample().set_gt_label(int(one)) for one in labels]
        padded = nn.utils.rnn.pad_sequence(tokens, batch_first=True)
        return self.cast_data(dict(inputs=padded, lengths=lengths, data_samples=samples))


@MODELS.register_module()
class NoAttention(Attention):
    """The control: tokens learn nothing of each other."""

    takes_mask = True

    def attend(self, x: Tensor, hw: tuple[int, int], mask: Optional[Tensor] = None) -> Tensor:
        """See :class:`Attention`."""
        return torch.zeros_like(x)


class Block(nn.Module):
    """Attention and FFN, each behind a LayerNorm and beside a residual connection."""

    def __init__(self, attention: dict, site: Site, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(site.dims), nn.LayerNorm(site.dims)
        self.attn = build_attention(attention, site)
        self.ffn = nn.Sequential(
            nn.Linear(site.dims, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, site.dims)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Optional[Tensor], sizes: list) -> Tensor:
        x = x + self.drop(attend_inside(self.attn, self.norm1(x), (1, x.size(1)), mask, sizes))
        return x + self.drop(self.ffn(self.norm2(x)))


@MODELS.register_module()
class SequenceClassifier(BaseModel):
    """The model of Long Range Arena in Nyströmformer's code, with any attention of mmsoft on tokens in one row.

    Padding takes no part in attention. The mean over the tokens divides by ``length``, as if all were padded to it.

    Args:
        attention (dict): Config of the attention.
        num_classes (int): Number of classes.
        length (int): Maximum length of a sequence.
        vocabulary (int): Number of different tokens.
        dims, heads, hidden, depth (int): Channels, heads, channels of the FFN, blocks.
        ratio (int): Tokens for each bottleneck token.
        dropout (float): Of embeddings, attention's output and FFN.
        data_preprocessor (dict): Config of the preprocessor.
    """

    def __init__(
        self,
        attention: dict,
        num_classes: int,
        length: int,
        vocabulary: int,
        dims: int = 64,
        heads: int = 2,
        hidden: int = 128,
        depth: int = 2,
        ratio: int = 4,
        dropout: float = 0.1,
        data_preprocessor: Optional[dict] = None,
    ) -> None:
        super().__init__(data_preprocessor or dict(type='PadSequences'))
        self.length = length
        self.words, self.places = nn.Embedding(vocabulary, dims), nn.Embedding(length, dims)
        for embedding in (self.words, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        self.drop = nn.Dropout(dropout)
        site = Site(dims=dims, heads=heads, grid=(1, length), ratio=ratio)
        self.blocks = nn.ModuleList(Block(attention, site, hidden, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(dims)
        self.head = nn.Sequential(nn.Linear(dims, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))

    def forward(self, inputs: Tensor, lengths: list[int], data_samples: Any = None, mode: str = 'tensor') -> Any:
        """Scores (B, classes) of tokens (B, n) of the given lengths; losses or data samples, as mmengine asks."""
        place = torch.arange(inputs.size(1), device=inputs.device)
        mask = place < torch.tensor(lengths, device=inputs.device)[:, None]
        padded = min(lengths) < inputs.size(1)
        sizes = [(1, length) for length in lengths]
        x = self.drop(self.words(inputs) + self.places(place))
        for block in self.blocks:
            x = block(x, mask[:, None, None] if padded else None, sizes)
        scores = self.head((self.norm(x) * mask.unsqueeze(-1)).sum(1) / self.length)
        if mode == 'tensor':
            return scores
        if mode == 'loss':
            return dict(loss=F.cross_entropy(scores, data_samples))
        return [one.set_pred_score(score.softmax(0)) for one, score in zip(data_samples, scores)]
