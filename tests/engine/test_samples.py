"""A sample that cannot be loaded has a name."""
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from mmsoft.engine import samples
from mmsoft.engine.samples import BrokenSample, ReproducibleSamples, Samples, set_random_states


class Pictures(Dataset):
    """Ten numbers between 0 and 1; some of them cannot be loaded."""

    def __init__(self, broken):
        self.broken = broken

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index in self.broken:
            raise OSError('cut off\nin two lines')
        return index + torch.rand(())

    def get_data_info(self, index):
        return dict(img_path=f'{index}.jpg')


def load(broken, workers, skip_broken=False):
    dataset = Pictures(broken)
    dataset.__getitems__ = ReproducibleSamples(dataset, skip_broken, 0)
    batches = [(0, [3, 4, 5]), (1, [6, 7])]
    return torch.cat(list(DataLoader(dataset, batch_sampler=batches, num_workers=workers)))


@pytest.mark.parametrize('workers', [0, 1])
def test_it_is_named(workers):
    with pytest.raises(BrokenSample) as caught:
        load([4], workers)
    said = str(caught.value)
    assert said.startswith('4.jpg cannot be loaded (OSError: cut off); mend it') and '\n' not in said
    assert 'skip_broken' in said


def test_evaluation():
    dataset = Pictures([4])
    dataset.__getitems__ = Samples(dataset)
    loader = DataLoader(dataset, batch_size=4)
    with pytest.raises(BrokenSample, match=r'^4\.jpg cannot be loaded'):
        for batch, expected in zip(loader, [range(4), ()]):
            assert batch.floor().tolist() == list(expected)


def test_another_takes_its_place_and_changes_no_other(monkeypatch):
    said = []
    monkeypatch.setattr(samples, 'print_log', lambda message, *_: said.append(message))
    whole, mended = load([], 0), load([4], 0, skip_broken=True)
    assert whole[1].floor() == 4 and mended[1].floor() != 4
    assert torch.equal(whole[[0, 2, 3, 4]], mended[[0, 2, 3, 4]])
    assert len(said) == 1 and said[0].startswith('4.jpg cannot be loaded (OSError: cut off); mend it')


def test_there_is_an_end_to_it():
    with pytest.raises(BrokenSample, match='cannot be loaded'):
        load(range(10), 0, skip_broken=True)


def test_random_states():
    drawn = []
    for key in ((0, 1), (1, 0), (0, 1)):
        set_random_states(*key)
        drawn.append(torch.rand(3))
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])
