"""DINO (Caron et al., arXiv 2104.14294): a student learns what its own moving average, the teacher, answers."""

from copy import deepcopy
from itertools import groupby
from typing import Any, Optional

import torch
import torch.nn.functional as F
from mmcv.cnn.bricks import DropPath
from mmengine.dist import all_reduce
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from mmpretrain.models import BaseSelfSupervisor
from torch import Tensor, nn


@MODELS.register_module()
class Projection(BaseModule):
    """Features (B, C) to scores (B, K): three linear layers, ℓ2 norm, and a last layer whose rows have norm 1.

    Args:
        in_dims (int): Channels C of the features.
        out_dims (int): Scores K.
        hidden (int): Channels between the first three layers.
        bottleneck (int): Channels in front of the last layer.
        norm (bool): A BatchNorm behind the first two layers, ``use_bn_in_head`` of the authors' code. In a short
            training it keeps the scores of different images apart.
    """

    def __init__(
        self, in_dims: int, out_dims: int = 65536, hidden: int = 2048, bottleneck: int = 256, norm: bool = False
    ) -> None:
        super().__init__(init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02, bias=0))
        layers: list[nn.Module] = []
        for dims in (in_dims, hidden):
            layers += [nn.Linear(dims, hidden), *([nn.BatchNorm1d(hidden)] if norm else []), nn.GELU()]
        self.layers = nn.Sequential(*layers, nn.Linear(hidden, bottleneck))
        self.last = nn.Linear(bottleneck, out_dims, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return F.linear(F.normalize(self.layers(x), dim=-1), F.normalize(self.last.weight, dim=-1))


@MODELS.register_module()
class DINOLoss(BaseModule):
    """Cross-entropy from the teacher's centred and sharpened answers to the student's, of different views.

    Args:
        out_dims (int): Scores K.
        student_temperature (float): What the student's scores are divided by.
        centre_momentum (float): Share of the old centre in the new one.

    Attributes:
        teacher_temperature: What the teacher's scores are divided by; :class:`DINOHook` sets it.
        centre: Moving average of the teacher's scores, (K).
    """

    def __init__(self, out_dims: int = 65536, student_temperature: float = 0.1, centre_momentum: float = 0.9) -> None:
        super().__init__()
        self.student_temperature, self.centre_momentum = student_temperature, centre_momentum
        self.teacher_temperature = 0.04
        self.centre: Tensor
        self.register_buffer('centre', torch.zeros(out_dims))

    def loss(self, student: Tensor, teacher: Tensor) -> dict[str, Tensor]:
        """Mean over all pairs of views of (V, B, K) and (T, B, K), the first T the same; then moves the centre."""
        targets = ((teacher - self.centre) / self.teacher_temperature).softmax(-1)
        answers = (student / self.student_temperature).log_softmax(-1)
        losses = torch.einsum('tbk,vbk->tv', targets, answers) / -student.size(1)
        others = ~torch.eye(*losses.shape, dtype=torch.bool, device=losses.device)
        mean = teacher.mean((0, 1))
        all_reduce(mean, 'mean')
        self.centre.lerp_(mean.to(self.centre.dtype), 1 - self.centre_momentum)
        return dict(loss=losses[others].mean())


@MODELS.register_module()
class DINO(BaseSelfSupervisor):
    """A student (``backbone``, ``neck``) and its teacher, without gradients, dropout and stochastic depth.

    The teacher's BatchNorm uses the statistics of its own batches, and averages them by itself. :class:`DINOHook`
    calls :meth:`update_teacher`. The features of the model are the teacher's.

    Args:
        backbone (dict): A backbone whose last output is (B, C), as by ``out_type='cls_token'``.
        neck (dict): Config of :class:`Projection`.
        head (dict): Config of :class:`DINOLoss`.
        **kwargs: See mmpretrain's BaseSelfSupervisor.
    """

    def __init__(self, backbone: dict, neck: dict, head: dict, **kwargs: Any) -> None:
        super().__init__(backbone, neck, head, **kwargs)
        self.teacher = nn.ModuleDict(deepcopy(dict(backbone=self.backbone, neck=self.neck))).requires_grad_(False)
        for module in self.teacher.modules():
            if isinstance(module, DropPath):
                module.drop_prob = 0.0
            elif isinstance(module, nn.Dropout):
                module.p = 0.0

    def init_weights(self) -> None:
        """Initialises the student, and begins with a teacher equal to it."""
        super().init_weights()
        for name, part in self.teacher.items():
            part.load_state_dict(getattr(self, name).state_dict())

    @torch.no_grad()
    def update_teacher(self, momentum: float) -> None:
        """Moves the teacher's parameters, not its buffers, to ``momentum`` times themselves plus the student's rest."""
        for name, part in self.teacher.items():
            for slow, fast in zip(part.parameters(), getattr(self, name).parameters()):
                slow.mul_(momentum).add_(fast, alpha=1 - momentum)

    def extract_feat(self, inputs: Tensor) -> Tensor:
        """The teacher's features (B, C) of images (B, 3, H, W)."""
        return self.teacher['backbone'](inputs)[-1]

    def loss(self, inputs: list[Tensor], data_samples: Optional[list] = None) -> dict[str, Tensor]:
        """Of V views (B, 3, H, W), of which the teacher sees the first two; equally large ones go through together."""
        groups = [torch.cat(list(views)) for _, views in groupby(inputs, key=lambda view: view.shape)]
        student = self.neck(torch.cat([self.backbone(group)[-1] for group in groups]))
        with torch.no_grad():
            teacher = self.teacher['neck'](self.extract_feat(torch.cat(inputs[:2])))
        return self.head.loss(student.unflatten(0, (len(inputs), -1)), teacher.unflatten(0, (2, -1)))
