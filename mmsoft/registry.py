"""The plugin's registries: ``type='mmsoft.SOFT'`` resolves from every OpenMMLab scope without ``custom_imports``."""
from mmengine.registry import HOOKS as MMENGINE_HOOKS
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS as MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS
from mmengine.registry import OPTIM_WRAPPERS as MMENGINE_OPTIM_WRAPPERS
from mmengine.registry import Registry

MODELS = Registry(
    'model',
    parent=MMENGINE_MODELS,
    scope='mmsoft',
    locations=['mmsoft.attention', 'mmsoft.backbones', 'mmsoft.necks'])
OPTIM_WRAPPER_CONSTRUCTORS = Registry(
    'optimizer wrapper constructor',
    parent=MMENGINE_OPTIM_WRAPPER_CONSTRUCTORS,
    scope='mmsoft',
    locations=['mmsoft.engine'])
OPTIM_WRAPPERS = Registry(
    'optimizer wrapper', parent=MMENGINE_OPTIM_WRAPPERS, scope='mmsoft', locations=['mmsoft.engine'])
HOOKS = Registry('hook', parent=MMENGINE_HOOKS, scope='mmsoft', locations=['mmsoft.engine'])
