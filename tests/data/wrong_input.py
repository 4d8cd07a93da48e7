"""For tests of wrong input: the error message, and a model with a head for so many classes."""

import pytest
import torch

from mmsoft.utils import UsageError


def sentence(function, *args):
    with pytest.raises(UsageError) as info:
        function(*args)
    text = str(info.value)
    assert '\n' not in text and text.endswith('.')
    return text


def head(name, count):
    model = torch.nn.Module()
    part = model.add_module(name, torch.nn.Linear(1, 1)) or getattr(model, name)
    part.num_classes = count
    return model
