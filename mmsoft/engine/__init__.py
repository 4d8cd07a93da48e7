"""What training adds to mmengine's engine; importing it registers everything."""

from . import attention_share, checkpoints, layer_decay, loops  # noqa: F401
