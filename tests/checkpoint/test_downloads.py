"""Checkpoints at addresses and in the Hugging Face Hub."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import safetensors.torch
import torch
from weights import SMALL, loaded, saved, weights_of

from mmsoft.backbones import SOFT
from mmsoft.checkpoint import CheckpointError, load_pretrained, read_checkpoint


def test_addresses_are_downloaded_once(tmp_path, monkeypatch):
    backbone = SOFT(SMALL, out_indices=(0, 1))
    files = [weights_of(backbone) for _ in range(2)]
    files[1] = {name: tensor + 1 for name, tensor in files[1].items()}
    addresses = {f'https://host.invalid/{i}/soft.pth?download=1': file for i, file in enumerate(files)}
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    calls = []
    monkeypatch.setattr(
        torch.hub, 'download_url_to_file', lambda url, path: calls.append(url) or saved(path, addresses[url])
    )
    for address, file in [*addresses.items()] * 2:
        load_pretrained(backbone, address)
        assert loaded(backbone, file), 'files of one name are mixed up'
    assert calls == [*addresses] and len(list((tmp_path / 'hub/checkpoints').glob('*.pth'))) == 2


def test_a_download_that_was_cut_off_is_tried_again(tmp_path, monkeypatch):
    """A server that closes the connection early is no error to torch's download."""
    content, calls = weights_of(SOFT(SMALL, out_indices=(0, 1))), []

    def download(url, path):
        saved(path, content)
        if not calls:
            Path(path).write_bytes(Path(path).read_bytes()[:-1000])
        calls.append(url)

    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    monkeypatch.setattr(torch.hub, 'download_url_to_file', download)
    with pytest.raises(CheckpointError, match='soft.pth is empty, damaged or cut off'):
        read_checkpoint('https://host.invalid/soft.pth')
    for _ in range(2):
        assert set(read_checkpoint('https://host.invalid/soft.pth')) == set(content)
    assert len(calls) == 2


def test_processes_download_an_address_once(tmp_path, monkeypatch):
    """Tools read before there is a process group, and threads wait for a lock of files as processes do."""
    content, calls = weights_of(SOFT(SMALL, out_indices=(0, 1))), []

    def download(url, path):
        calls.append(url)
        time.sleep(0.2)
        saved(path, content)

    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    monkeypatch.setattr(torch.hub, 'download_url_to_file', download)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(read_checkpoint, ['https://host.invalid/soft.pth'] * 4))
    assert len(calls) == 1 and all(set(checkpoint) == set(content) for checkpoint in found)


def test_a_download_is_read_where_nothing_can_be_written(tmp_path, monkeypatch):
    def lock(path):
        raise PermissionError(13, 'Permission denied', path)

    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    monkeypatch.setattr(torch.hub, 'download_url_to_file', lambda url, path: saved(path, {'a': torch.ones(1)}))
    read_checkpoint('https://host.invalid/soft.pth')
    monkeypatch.setattr('mmsoft.checkpoint.io.FileLock', lock)
    assert set(read_checkpoint('https://host.invalid/soft.pth')) == {'a'}


class TestHub:
    """``hf://owner/name/file``, with a stand-in for huggingface_hub's download."""

    ADDRESS = 'hf://someone/soft/weights/soft.safetensors'

    def test_a_file_is_loaded(self, tmp_path, monkeypatch):
        huggingface_hub = pytest.importorskip('huggingface_hub')
        published = weights_of(SOFT(SMALL, out_indices=(0, 1)))
        safetensors.torch.save_file(published, tmp_path / 'soft.safetensors')
        asked = []
        monkeypatch.setattr(
            huggingface_hub, 'hf_hub_download', lambda *args: asked.append(args) or str(tmp_path / 'soft.safetensors')
        )
        init_cfg = dict(type='Pretrained', checkpoint=self.ADDRESS)
        backbone = SOFT(SMALL, out_indices=(0, 1), init_cfg=init_cfg)
        backbone.init_weights()
        assert loaded(backbone, published) and asked == [('someone/soft', 'weights/soft.safetensors')]

    def test_a_damaged_file_alone_is_removed(self, tmp_path, monkeypatch):
        """The Hub's folder of a version has links to files, which it makes again where the file still is."""
        huggingface_hub = pytest.importorskip('huggingface_hub')
        blob, link = tmp_path / 'blob', tmp_path / 'soft.pth'
        link.symlink_to(blob)
        monkeypatch.setattr(huggingface_hub, 'hf_hub_download', lambda *args: str(link))
        torch.save(dict(state_dict={}, hook=torch.nn.ReLU()), blob)
        with pytest.raises(CheckpointError, match='could run code'):
            read_checkpoint('hf://someone/soft/soft.pth')
        with monkeypatch.context() as patch:
            patch.setattr(torch, 'load', Mock(side_effect=RuntimeError("DefaultCPUAllocator: can't allocate memory")))
            with pytest.raises(CheckpointError, match='needs more memory than there is'):
                read_checkpoint('hf://someone/soft/soft.pth')
        assert blob.exists()
        blob.write_bytes(blob.read_bytes()[:99])
        with pytest.raises(CheckpointError, match='get it again'):
            read_checkpoint('hf://someone/soft/soft.pth')
        assert not blob.exists()

    def test_what_goes_wrong_is_one_sentence(self, monkeypatch):
        huggingface_hub = pytest.importorskip('huggingface_hub')

        for error in (OSError('no network'), ValueError('no network')):  # the Hub's own are of either kind
            monkeypatch.setattr(huggingface_hub, 'hf_hub_download', Mock(side_effect=error))
            with pytest.raises(CheckpointError, match='soft.safetensors cannot be downloaded .no network.'):
                read_checkpoint(self.ADDRESS)
        for address in ('hf://soft.pth', 'hf://someone/soft.pth', 'hf://someone/soft/'):
            with pytest.raises(CheckpointError, match=f'{address} is not an address of the form hf://owner/name/file'):
                read_checkpoint(address)

    @pytest.mark.parametrize(
        'address', ['https://localhost/my file.pth', 'http://localhost/my file.pth', 'https://localhost:abc/x.pth']
    )
    def test_what_is_no_address(self, address):
        with pytest.raises(CheckpointError, match='cannot be downloaded'):
            read_checkpoint(address)

    def test_without_the_library(self, monkeypatch):
        monkeypatch.setitem(sys.modules, 'huggingface_hub', None)
        with pytest.raises(CheckpointError, match='soft.safetensors needs huggingface_hub, which is not installed'):
            read_checkpoint(self.ADDRESS)
