import pytest

from mmsoft.ops import inverse


@pytest.fixture(params=['newton', 'resolvent'])
def method(request, monkeypatch):
    """The route of the inverse, whatever the number of tokens."""
    monkeypatch.setattr(inverse, '_FEW_TOKENS', 2**31 if request.param == 'newton' else 0)
    return request.param
