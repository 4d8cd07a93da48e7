"""Importing this turns safe reading on: ``custom_imports = dict(imports=['mmsoft.checkpoint.safe_loading'])``."""

from .load import load_from_weights_only, use_safe_loading

__all__ = ['load_from_weights_only', 'use_safe_loading']
use_safe_loading()
