"""Stochastic depth of attention: in training some images attend, in tests all do, by as much as their mean."""

import pytest
import torch

from mmsoft.attention import SimAAttention, Site, SOFTAttention
from mmsoft.attention.measure import without_attention
from projects.trees.attention import StochasticSimAAttention, StochasticSOFTAttention

SITE, HW = Site(16, 2, (8, 8), ratio=2), (8, 12)


SOFT, SIMA = (SOFTAttention, StochasticSOFTAttention), (SimAAttention, StochasticSimAAttention)


def pair(drop_rate=0.5, kinds=SOFT, **options):
    """An attention and the same with stochastic depth, and tokens."""
    torch.manual_seed(0)
    plain, stochastic = kinds[0](SITE, **options), kinds[1](SITE, drop_rate, **options)
    stochastic.load_state_dict(plain.state_dict())
    return plain, stochastic, torch.randn(6, HW[0] * HW[1], 16)


@pytest.mark.filterwarnings('ignore:Weights trained with')
@pytest.mark.parametrize('drop_rate, attending', [(0.0, 6), (0.5, 3), (0.75, 2), (0.9, 1)])
@pytest.mark.parametrize('kinds, options', [(SOFT, {}), (SIMA, dict(reference_tokens=1))], ids=['SOFT', 'SimA'])
def test_in_training_a_part_of_the_images_attends_and_the_others_do_as_without_attention(
    drop_rate, attending, kinds, options
):
    plain, stochastic, x = pair(drop_rate, kinds, **options)
    with torch.no_grad():
        attended = plain(x, HW)
        with without_attention(plain):
            without = plain(x, HW)
        assert ((attended - without).flatten(1).norm(dim=1) > 0.1 * without.flatten(1).norm(dim=1)).all()
        found, seen = stochastic.train()(x, HW), set()
        attended = without + 6 * (1 - drop_rate) / attending * (attended - without)  # as much on the mean as in tests
        as_plain = [torch.allclose(one, other, atol=1e-5) for one, other in zip(found, attended)]
        as_without = [torch.allclose(one, other, atol=1e-5) for one, other in zip(found, without)]
        assert sum(as_plain) == attending and all(a != b for a, b in zip(as_plain, as_without))
        for _ in range(30):
            seen |= {i for i, one in enumerate(stochastic(x, HW)) if torch.allclose(one, attended[i], atol=1e-5)}
        assert seen == set(range(6)), 'always the same images attend'


@pytest.mark.filterwarnings('ignore:Weights trained with')
@pytest.mark.parametrize('limit', [None, 6])
def test_the_limit_is_for_tests_alone(limit):
    plain, stochastic, x = pair(drop_rate=0.0, bottleneck_limit=limit)
    with torch.no_grad():
        limited = plain.eval()(x, HW)
        torch.testing.assert_close(stochastic.eval()(x, HW), limited)
        plain.limit = None
        unlimited = plain(x, HW)
        torch.testing.assert_close(stochastic.train()(x, HW), unlimited)
    assert limit is None or (limited - unlimited).norm() > 1e-3 * unlimited.norm()


@pytest.mark.filterwarnings('ignore:Weights trained with')
@pytest.mark.parametrize(
    'kinds, options', [(SOFT, {}), (SOFT, dict(bottleneck_limit=6)), (SIMA, dict(reference_tokens=24))]
)
def test_in_tests_all_images_attend_at_the_rate_of_training(kinds, options):
    """The output is linear in what attention gives, so its mean over random choices is known."""
    plain, stochastic, x = pair(0.25, kinds, **options)
    with torch.no_grad():
        attended, found = plain.eval()(x, HW), stochastic.eval()(x, HW)
        with without_attention(plain), without_attention(stochastic):
            without = plain(x, HW)
            torch.testing.assert_close(stochastic(x, HW), without)
    torch.testing.assert_close(found, without + 0.75 * (attended - without), atol=1e-5, rtol=1e-4)


def test_images_that_do_not_attend_leave_no_gradient_in_the_queries():
    _, stochastic, x = pair()
    x.requires_grad_()
    stochastic.whole = lambda q, bottleneck, v, iterations: q * 1.0 + 0 * v
    stochastic.conv.weight.data.zero_()
    (grad,) = torch.autograd.grad(stochastic.train()(x, HW).square().sum(), x)
    assert (grad.flatten(1).norm(dim=1) > 0).sum() == 3


def test_simas_mask_is_that_of_the_images_that_attend():
    plain, stochastic, _ = pair(drop_rate=0.5, kinds=SIMA, reference_tokens=24)
    q, k, v, mask = *torch.randn(3, 6, 2, 96, 8), torch.rand(6, 96) > 0.5
    attended, found = plain.product(q, k, v, mask), stochastic.train().product(q, k, v, mask)
    attends = found.flatten(1).any(1)
    assert attends.sum() == 3
    torch.testing.assert_close(found[attends], 2 * attended[attends])


def test_fewer_keys_than_queries():
    """As in CvT, whose keys and values are projected with a stride."""
    plain, stochastic, _ = pair(drop_rate=0.0, kinds=SIMA)
    q, k, v = torch.randn(4, 2, 64, 8), torch.randn(4, 2, 16, 8), torch.randn(4, 2, 16, 8)
    torch.testing.assert_close(stochastic.train().product(q, k, v), plain.product(q, k, v))
