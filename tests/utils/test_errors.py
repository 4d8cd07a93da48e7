"""One clear sentence for what people get wrong."""

import pytest

from mmsoft.utils import OptionError, check_choice


def test_choice():
    check_choice('sampling', 'conv', ('conv', 'pool'))
    with pytest.raises(OptionError, match="^sampling must be one of conv, pool; got 'none'$"):
        check_choice('sampling', 'none', ('conv', 'pool'))
