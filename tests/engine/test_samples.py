"""A sample that cannot be loaded has a name, and random states of its own."""

import pickle
import traceback

import pytest
import torch
from mmengine.dataset import DefaultSampler
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler, TensorDataset

from mmsoft.engine import samples
from mmsoft.engine.samples import BrokenSample, NamedSamples, NumberedBatches, set_random_states


class Images(Dataset):
    """Ten numbers with a random fraction; some of them cannot be loaded."""

    metainfo = dict(classes=('cat',))

    def __init__(self, broken=()):
        self.broken = broken

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index in self.broken:
            raise OSError('cut off\nin two lines')
        return index + torch.rand(())

    def get_data_info(self, index):
        return dict(img_path=f'{index}.jpg')


def numbered(**options):
    return NumberedBatches(
        SequentialSampler(Images()), 3, dict(type=BatchSampler, drop_last=False), **{'endless': False, **options}
    )


def load(broken, workers=0):
    dataset = NamedSamples(Images(broken))
    return torch.cat(list(DataLoader(dataset, batch_sampler=numbered(), num_workers=workers)))


@pytest.mark.parametrize('workers', [0, 1])
def test_it_is_named(workers):
    with pytest.raises(BrokenSample) as caught:
        load([4], workers)
    said = str(caught.value)
    assert said.startswith('4.jpg cannot be loaded (OSError: cut off); fix it') and '\n' not in said


def test_frames_of_a_video_have_a_number_alone():
    with pytest.raises(BrokenSample, match=r'^Sample \(2, 5\) of Images cannot be loaded'):
        NamedSamples(Images([(2, 5)]))[(2, 5)]


def test_evaluation():
    loader = DataLoader(NamedSamples(Images([4])), batch_size=4)
    with pytest.raises(BrokenSample, match=r'^4\.jpg cannot be loaded'):
        for batch, expected in zip(loader, [range(4), ()]):
            assert batch.floor().tolist() == list(expected)


def test_a_loop_ends():
    assert [one.item() for (one,) in NamedSamples(TensorDataset(torch.arange(3)))] == [0, 1, 2]


def test_the_data_set_inside_is_reached():
    """mmdet's hooks read what a data set knows, and set its pipeline."""
    dataset = pickle.loads(pickle.dumps(NamedSamples(Images())))
    dataset.broken = [1]
    assert dataset._samples.broken == [1] and dataset.metainfo['classes'] == ('cat',) and len(dataset) == 10
    assert not hasattr(dataset, 'pipeline') and not hasattr(dataset, 'dataset')


def test_batches_continue_where_they_were_left():
    whole, rest = numbered(), numbered()
    rest.first = 2
    assert list(rest) == list(whole)[2:] and len(whole) == 4
    assert [index for _, index in list(whole)[3]] == [9]


def test_batches_without_end():
    batches = iter(numbered(endless=True))
    drawn = [next(batches) for _ in range(5)]
    assert [index for _, index in drawn[4]] == [0, 1, 2]
    assert len({key for batch in drawn for key, _ in batch}) == 13


def test_endless_batches_are_shuffled_anew_in_each_epoch():
    sampler, batches = DefaultSampler(Images(), shuffle=True, seed=0), dict(type=BatchSampler, drop_last=False)
    drawn = iter(NumberedBatches(sampler, 5, batches, endless=True))
    epochs = [[index for _ in range(2) for _, index in next(drawn)] for _ in range(3)]
    assert len({*map(tuple, epochs)}) == 3 and all(sorted(epoch) == [*range(10)] for epoch in epochs)


def test_processes_share_the_keys_of_one_that_has_their_batches(monkeypatch):
    keys = []
    for rank in (0, 1):
        monkeypatch.setattr(samples, 'get_dist_info', lambda rank=rank: (rank, 2))
        keys += [key for key, _ in next(iter(numbered()))]
    assert keys == [(0, 1, 0, place) for place in (0, 2, 4, 1, 3, 5)]  # as samplers deal out samples


def test_random_states():
    drawn = []
    for key in ((0, 1), (1, 0), (0, 1)):
        set_random_states(*key)
        drawn.append(torch.rand(3))
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])
    seeds = set()
    for number in range(20):
        set_random_states(number)  # 64 bits each, which torch takes
        seeds.add(torch.initial_seed())
    assert len(seeds) == 20 and max(seeds) >= 2**62


def test_random_states_cost_no_stack_trace(monkeypatch):
    """``torch.manual_seed`` formats one for each kind of device that is not in use: milliseconds for each sample."""
    formatted = []
    monkeypatch.setattr(traceback, 'format_stack', lambda *args, **kwargs: formatted.append(1) or [])
    set_random_states(0, 1)
    assert not formatted or torch.cuda.is_initialized()
