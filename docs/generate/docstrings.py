"""Adapts docstrings to Markdown: ``Example:`` is code as ``Examples:`` is, formulas are MathML, other roles are names."""

import re

import griffe
from latex2mathml.converter import convert


class Docstrings(griffe.Extension):
    def on_object(self, *, obj, **_):
        if obj.docstring:
            text = re.sub(r'(?m)^Example:$', 'Examples:', obj.docstring.value)
            text = re.sub(r':math:`([^`]+)`', lambda role: f'<span>{convert(role[1])}</span>', text)
            obj.docstring.value = re.sub(r':(?:class|func|meth|mod|data|attr|obj):`~?([^`]+)`', r'`\1`', text)
