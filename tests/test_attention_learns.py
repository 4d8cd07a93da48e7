"""Every attention learns what only attention can tell: whether the sky far above an object is that of day or night."""

import pytest

from benchmarks.evidence.far import HELD_OUT, TRAINED, Far, Sky, scenes
from benchmarks.evidence.rows import select
from mmsoft import attention
from mmsoft.attention import Attention
from mmsoft.registry import MODELS

FAR = select(['far'])
COMPARED = ('linformer', 'performer', 'nystromformer', 'gaussian', 'efficient', 'cosformer')


@pytest.mark.parametrize(
    'name', [pytest.param(name, marks=[pytest.mark.slow] * name.endswith(COMPARED)) for name in FAR]
)
def test_learns_what_only_attention_can_tell(name):
    found = FAR[name].task.train()
    assert found['scores']['accuracy'] >= 0.9
    assert 0.4 <= found['without_attention']['accuracy'] <= 0.6


def test_every_attention_of_the_package_learns_it():
    made = {str(row.task.backbone['attention']) for row in FAR.values()}
    for name in vars(attention):
        one = getattr(attention, name)
        if isinstance(one, type) and issubclass(one, Attention) and not one.for_class_token:
            assert name.startswith(('Attention', 'Multihead')) or any(name in text for text in made), name


def test_convolutions_do_not_reach_the_sky():
    """So the task cannot be solved without attention: trained without it, a network stays at chance."""
    task: Far = FAR['far_soft_soft_norm'].task
    model = Sky(MODELS.build(dict(task.backbone, _scope_='mmsoft')), task.stride)
    model.backbone.init_weights()
    for module in model.modules():
        if isinstance(module, Attention):
            module.attended.register_forward_hook(lambda module, args, out: out * 0)
    images = scenes(task.side, TRAINED + HELD_OUT)
    task.fit(model, images.part(slice(TRAINED)), task.iterations, task.lr)
    assert 0.4 <= model.accuracy(images.part(slice(TRAINED, None))) <= 0.6
