"""Files are whole or not there."""

import errno
import os
import stat
from pathlib import Path

import pytest

from mmsoft.utils import UsageError
from mmsoft.utils.files import atomic_write, check_new


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


def test_a_full_disk_before_the_first_byte_leaves_nothing(tmp_path, monkeypatch):
    def rename(path, target):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(Path, 'rename', rename)
    with pytest.raises(OSError, match='No space') as info, atomic_write(tmp_path / 'file'):
        pass
    assert info.value.filename == str(tmp_path / 'file') and not os.listdir(tmp_path)


def test_permissions_are_those_of_other_files(tmp_path):
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / 'file'):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / 'file').stat().st_mode) == 0o640


def test_a_link_stays_one_and_what_is_no_file_is_left_alone(tmp_path):
    (tmp_path / 'link').symlink_to('deep/file')
    with atomic_write(tmp_path / 'link') as file:
        file.write(b'new')
    assert (tmp_path / 'link').is_symlink() and (tmp_path / 'deep/file').read_bytes() == b'new'
    os.mkfifo(tmp_path / 'pipe')
    with pytest.raises(FileExistsError) as info, atomic_write(tmp_path / 'pipe'):
        pass
    assert info.value.filename == str(tmp_path / 'pipe') and sorted(os.listdir(tmp_path)) == ['deep', 'link', 'pipe']


@pytest.mark.parametrize('name', ['file', 'file[1]', 255 * 'n'])
def test_what_a_killed_process_left_is_replaced(tmp_path, name):
    (tmp_path / f'.{name[:50]}.0123abcd.partial').write_bytes(b'much longer than what is written now')
    with atomic_write(tmp_path / name) as file:
        file.write(b'new')
    assert (tmp_path / name).read_bytes() == b'new' and os.listdir(tmp_path) == [name]


def test_a_link_to_nothing_is_no_new_folder(tmp_path):
    (tmp_path / 'out').symlink_to('gone')
    with pytest.raises(UsageError, match='out is not empty, and nothing there is overwritten'):
        check_new(str(tmp_path / 'out'))


def test_two_writers_of_one_file_leave_each_other_alone(tmp_path):
    """Process ids repeat in containers, so names do not depend on them; the last to finish wins."""
    path = tmp_path / 'file'
    with atomic_write(path) as first:
        with atomic_write(path) as second:
            first.write(b'first')
            second.write(b'second')
        assert path.read_bytes() == b'second'
    assert path.read_bytes() == b'first' and os.listdir(tmp_path) == ['file']
