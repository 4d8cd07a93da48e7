"""Files are whole or not there, and nobody touches another writer's."""
import os
import stat

import pytest

from mmsoft.utils.files import atomic_write, remove_partial


def test_the_old_one_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / 'file'
    path.write_bytes(b'old')
    with atomic_write(path) as file:
        file.write(b'new')
        file.flush()
        assert path.read_bytes() == b'old'
    assert path.read_bytes() == b'new' and os.listdir(tmp_path) == ['file']
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as file:
        raise KeyboardInterrupt
    assert path.read_bytes() == b'new' and os.listdir(tmp_path) == ['file']


def test_process_ids_repeat(tmp_path, monkeypatch):
    """In containers, where a killed process leaves its file, and between threads."""
    monkeypatch.setattr(os, 'getpid', lambda: 17)
    path = tmp_path / 'file'
    (tmp_path / '.file.17.partial').write_bytes(b'left')
    with atomic_write(path) as one:
        one.write(b'one')
        with atomic_write(path) as other:
            other.write(b'other')
        assert path.read_bytes() == b'other'
    assert path.read_bytes() == b'one' and (tmp_path / '.file.17.partial').read_bytes() == b'left'


def test_permissions_are_those_of_other_files(tmp_path):
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / 'file'):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / 'file').stat().st_mode) == 0o640


def test_only_what_nobody_writes_is_removed(tmp_path):
    pytest.importorskip('fcntl')
    (tmp_path / '.file.0123456789abcdef.partial').write_bytes(b'left')
    (tmp_path / 'file.partial').touch()
    with atomic_write(tmp_path / 'file') as file:
        file.write(b'whole')
        remove_partial(tmp_path)
        assert len(list(tmp_path.glob('.*.partial'))) == 1
    assert sorted(os.listdir(tmp_path)) == ['file', 'file.partial']
    assert (tmp_path / 'file').read_bytes() == b'whole'
