"""Hooks, loops and constructors beyond mmengine's; importing this package registers them."""

from . import attention_share, checkpoints, layer_decay, loops  # noqa: F401
