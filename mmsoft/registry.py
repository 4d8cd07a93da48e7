"""The plugin's registries: ``type='mmsoft.SOFT'`` resolves from every OpenMMLab scope without ``custom_imports``."""
from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import Registry

MODELS = Registry('model', parent=MMENGINE_MODELS, scope='mmsoft', locations=['mmsoft.backbones', 'mmsoft.necks'])
