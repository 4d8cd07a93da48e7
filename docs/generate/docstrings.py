"""Adapts docstrings to Markdown: ``Example:`` is code as ``Examples:`` is, and a role is the name that it refers to."""

import re

import griffe


class Docstrings(griffe.Extension):
    def on_object(self, *, obj, **_):
        if obj.docstring:
            text = re.sub(r'(?m)^Example:$', 'Examples:', obj.docstring.value)
            obj.docstring.value = re.sub(r':(?:class|func|meth|mod|data|attr|obj):`~?([^`]+)`', r'`\1`', text)
