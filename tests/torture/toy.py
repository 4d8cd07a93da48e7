"""A training of milliseconds by mmengine."""

import torch
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from torch.utils.data import Dataset


@MODELS.register_module()
class ToyModel(BaseModel):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)

    def forward(self, inputs, mode='tensor'):
        return dict(loss=self.linear(torch.stack(inputs).float()).square().mean())


@DATASETS.register_module()
class ToyData(Dataset):
    metainfo = dict(classes=('number',))

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return dict(inputs=torch.rand(1) + index)


def config(work_dir, **changes):
    """Two epochs of two iterations."""
    given = dict(
        model=dict(type='ToyModel'),
        work_dir=str(work_dir),
        experiment_name=str(work_dir).replace('/', '_'),
        train_dataloader=dict(
            dataset=dict(type='ToyData'), batch_size=2, sampler=dict(type='DefaultSampler', shuffle=True)
        ),
        train_cfg=dict(by_epoch=True, max_epochs=2),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.01)),
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=1)),
        custom_hooks=[dict(type='mmsoft.WholeCheckpointsHook'), dict(type='mmsoft.FiniteTrainingHook')],
        log_level='ERROR',
    )
    return {**given, **changes}
