"""Training that goes on as if nothing had happened, keeps whole checkpoints, ends when its loss does, and logs what
attention contributes."""

custom_imports = dict(imports=['mmsoft.checkpoint.safe_loading'])  # for inferencers of OpenMMLab libraries, too
runner_type = 'mmsoft.Runner'  # mmengine's, with training loops that resume to the bit
custom_hooks = [
    dict(type='mmsoft.WholeCheckpointsHook'),
    dict(type='mmsoft.FiniteTrainingHook'),
    dict(type='mmsoft.AttentionShareHook'),
]
