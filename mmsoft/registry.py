"""The plugin's registries: ``type='mmsoft.SOFT'`` resolves from every OpenMMLab scope without ``custom_imports``."""

from mmengine import registry as mmengine
from mmengine.registry import Registry


def _child(parent: Registry, *locations: str) -> Registry:
    return Registry(parent.name, parent=parent, scope='mmsoft', locations=list(locations))


MODELS = _child(mmengine.MODELS, 'mmsoft.attention', 'mmsoft.backbones', 'mmsoft.necks')
HOOKS = _child(mmengine.HOOKS, 'mmsoft.engine')
LOOPS = _child(mmengine.LOOPS, 'mmsoft.engine')
OPTIM_WRAPPER_CONSTRUCTORS = _child(mmengine.OPTIM_WRAPPER_CONSTRUCTORS, 'mmsoft.engine')
RUNNERS = _child(mmengine.RUNNERS, 'mmsoft.engine')
