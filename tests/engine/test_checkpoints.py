"""Checkpoints are whole or not there, and the newest one is found."""

import os
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import toy
from mmengine.config import ConfigDict
from mmengine.fileio import get_file_backend
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner
from toy import config

from mmsoft.engine import checkpoints
from mmsoft.engine.checkpoints import BACKEND, WholeCheckpointsHook, latest_checkpoint
from mmsoft.utils import UsageError


def save(path, **more):
    torch.save(dict(meta={}, state_dict=dict(weight=torch.zeros(999)), optimizer={}, **more), path)
    return str(path)


@pytest.fixture
def backend():
    return get_file_backend(backend_args=dict(backend=BACKEND, outdated=[]))


class TestWriting:
    def test_the_old_one_goes_when_the_new_one_is_there(self, tmp_path, backend, monkeypatch):
        old, new = tmp_path / 'epoch_1.pth', tmp_path / 'new/folder/epoch_2.pth'
        backend.put(b'old', str(old))
        backend.remove(str(old))

        def replace(source, target):
            assert Path(source).read_bytes() == b'new' and not new.exists() and old.read_bytes() == b'old'
            replaced.append(target)
            true_replace(source, target)

        replaced = []
        true_replace = os.replace
        monkeypatch.setattr(os, 'replace', replace)
        backend.put(b'new', str(new))
        assert new.read_bytes() == b'new' and not old.exists() and len(replaced) == 1
        backend.remove(str(old))  # which somebody else has removed meanwhile
        monkeypatch.undo()
        backend.put(b'newer', str(tmp_path / 'epoch_3.pth'))

    def test_no_room(self, tmp_path, backend, monkeypatch):
        path = tmp_path / 'epoch_1.pth'
        backend.put(b'whole', str(path))
        backend.remove(str(path))
        with pytest.raises(OSError, match='No space left on device: .*epoch_1.pth'):
            with monkeypatch.context() as patch:
                patch.setattr(os, 'replace', lambda *_: (_ for _ in ()).throw(OSError(28, 'No space left on device')))
                backend.put(b'half', str(path))
        assert path.read_bytes() == b'whole' and len(list(tmp_path.iterdir())) == 1

    def test_what_is_written_again_stays(self, tmp_path, backend):
        """As the best checkpoint of a name that does not change."""
        path = tmp_path / 'best.pth'
        for content in (b'old', b'new'):
            backend.put(content, str(path))
            assert path.read_bytes() == content
            backend.remove(str(path))


class TestLatest:
    def test_by_number(self, tmp_path):
        assert latest_checkpoint(tmp_path) is None
        for name in ('epoch_9.pth', 'epoch_10.pth', 'best_mAP_epoch_11.pth', 'notes.pth'):
            save(tmp_path / name)
        assert latest_checkpoint(tmp_path) == str(tmp_path / 'epoch_10.pth')

    @pytest.mark.parametrize('record', ['', 'iter_100.pth', 'gone/iter_100.pth'])
    def test_whatever_last_checkpoint_says(self, tmp_path, record):
        """It is written after the checkpoint, and not at one stroke."""
        for name in ('iter_100.pth', 'iter_200.pth'):
            save(tmp_path / name)
        (tmp_path / 'last_checkpoint').write_text(record and str(tmp_path / record))
        assert latest_checkpoint(tmp_path) == str(tmp_path / 'iter_200.pth')

    def test_elsewhere(self, tmp_path, monkeypatch):
        """In the hook's out_dir, of which last_checkpoint tells; not where the process happens to run."""
        (tmp_path / 'run').mkdir()
        out = tmp_path / 'out'
        out.mkdir()
        monkeypatch.chdir(out)
        save(out / 'epoch_1.pth')
        assert latest_checkpoint(tmp_path / 'run') is None
        (tmp_path / 'run/last_checkpoint').write_text(str(out / 'epoch_1.pth'))
        assert latest_checkpoint(tmp_path / 'run') == str(out / 'epoch_1.pth')

    def test_the_kind_that_was_written_last(self, tmp_path):
        for name in ('iter_100.pth', 'epoch_1.pth', 'epoch_2.pth'):
            save(tmp_path / name)
        (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_1.pth'))
        assert latest_checkpoint(tmp_path) == str(tmp_path / 'epoch_2.pth')

    @pytest.mark.parametrize(
        'record, newest', [('', 'epoch_7.pth'), ('5.pth', '5.pth'), ('epoch_6.pth', 'epoch_7.pth')]
    )
    def test_of_names_that_are_numbers_alone(self, tmp_path, record, newest):
        for name in ('5.pth', 'epoch_7.pth'):
            save(tmp_path / name)
        (tmp_path / 'last_checkpoint').write_text(record)
        assert latest_checkpoint(tmp_path) == str(tmp_path / newest)

    @pytest.mark.parametrize('named, newest', [('epoch_3.pth', 'epoch_4.pth'), ('epoch_9.pth', 'epoch_12.pth')])
    def test_not_of_an_earlier_training(self, tmp_path, named, newest):
        """In the same folder: older than the one that last_checkpoint names, unless that one is gone."""
        for second, name in enumerate(('epoch_12.pth', 'epoch_3.pth', 'epoch_4.pth')):
            os.utime(save(tmp_path / name), (second, second))
        (tmp_path / 'last_checkpoint').write_text(str(tmp_path / named))
        assert latest_checkpoint(tmp_path) == str(tmp_path / newest)


class TestHook:
    @pytest.mark.parametrize(
        'options, chosen',
        [
            ({}, dict(backend=BACKEND, outdated=[])),
            (dict(out_dir='s3://bucket'), None),
            (dict(backend_args=dict(backend='local')), dict(backend='local')),
            (dict(file_client_args=dict(backend='disk')), None),
        ],
    )
    def test_the_backend(self, tmp_path, options, chosen):
        hook = CheckpointHook(**options)
        WholeCheckpointsHook().before_run(SimpleNamespace(work_dir=str(tmp_path), hooks=[hook]))
        assert hook.backend_args == chosen
        remote = CheckpointHook()
        WholeCheckpointsHook().before_run(SimpleNamespace(work_dir='s3://bucket/run', hooks=[remote]))
        assert remote.backend_args is None

    @pytest.mark.parametrize('save_best', ['coco/bbox_mAp', ['coco/bbox_mAP', 'coco/bbox_map']])
    def test_the_best_by_no_score(self, save_best):
        runner = SimpleNamespace(hooks=[Hook(), CheckpointHook(save_best=save_best)])
        message = 'There is no score coco/bbox_m(Ap|ap) for save_best: the scores are coco/bbox_mAP, coco/bbox_mAP_50; '
        with pytest.raises(UsageError, match=message):
            WholeCheckpointsHook().after_val_epoch(runner, {'coco/bbox_mAP': 0.1, 'coco/bbox_mAP_50': 0.2})

    @pytest.mark.parametrize('save_best', [None, 'auto', 'coco/bbox_mAP'])
    @pytest.mark.parametrize('metrics', [{}, {'coco/bbox_mAP': 0.1}])
    def test_the_best_by_a_score(self, save_best, metrics):
        """There are no scores if nothing was found."""
        WholeCheckpointsHook().after_val_epoch(SimpleNamespace(hooks=[CheckpointHook(save_best=save_best)]), metrics)


def names(work_dir):
    return sorted(path.name for path in work_dir.glob('*.pth'))


class TestTraining:
    """Several trainings in one process, as in a notebook."""

    def fail_at_epoch_2(self, work_dir, monkeypatch):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            before = Runner.call_hook

            def call_hook(self, name, **kwargs):
                if name == 'before_save_checkpoint' and self.epoch == 1:
                    raise KeyboardInterrupt
                before(self, name, **kwargs)

            patch.setattr(Runner, 'call_hook', call_hook)
            Runner.from_cfg(config(work_dir)).train()
        assert names(work_dir) == ['epoch_1.pth']

    def test_another_one_that_failed_keeps_its_checkpoint(self, tmp_path, monkeypatch):
        self.fail_at_epoch_2(tmp_path / 'a', monkeypatch)
        Runner.from_cfg(config(tmp_path / 'b')).train()
        assert names(tmp_path / 'a') == ['epoch_1.pth'] and names(tmp_path / 'b') == ['epoch_2.pth']

    @pytest.mark.parametrize('resume', [False, True])
    def test_started_again_in_the_same_folder(self, tmp_path, monkeypatch, resume):
        self.fail_at_epoch_2(tmp_path, monkeypatch)
        there, put = [], checkpoints.WholeFiles.put

        def and_look(self, obj, filepath):
            put(self, obj, filepath)
            there.append(names(tmp_path))

        monkeypatch.setattr(checkpoints.WholeFiles, 'put', and_look)
        Runner.from_cfg(config(tmp_path, resume=resume)).train()
        assert there == ([['epoch_2.pth']] if resume else [['epoch_1.pth'], ['epoch_2.pth']])

    def test_what_it_has_not_written_stays(self, tmp_path):
        """Each write removes what it replaces, and nothing else."""
        (tmp_path / 'epoch_9.pth').touch()
        Runner.from_cfg(config(tmp_path, train_cfg=dict(by_epoch=True, max_epochs=3))).train()
        assert names(tmp_path) == ['epoch_3.pth', 'epoch_9.pth']

    def test_logged_values_are_read_without_running_anything(self, tmp_path):
        """By torch.load's default since torch 2.6, by timm, and by mmengine, which resumes them."""
        runner = Runner.from_cfg(config(tmp_path))
        runner.register_hook(BestHook())
        runner.train()
        saved = torch.load(tmp_path / 'epoch_2.pth', weights_only=True)
        assert saved['message_hub']['runtime_info']['best'] == 0.5
        assert set(saved['message_hub']['resumed_keys']) <= set(
            saved['message_hub']['runtime_info']
        )  # or mmengine warns
        resumed = Runner.from_cfg(
            config(tmp_path, train_cfg=dict(by_epoch=True, max_epochs=3), resume=True, experiment_name='resumed')
        )
        resumed.train()
        assert resumed.iter == 6 and resumed.message_hub.get_info('best') == 0.5
        assert len(resumed.message_hub.get_scalar('train/loss').data[0]) == 2, 'the history begins anew'

    def test_settings_of_the_data_are_read_whatever_they_are(self, tmp_path, monkeypatch):
        """Checkpoints keep them; objects that could run code would not be read."""
        nested = ConfigDict(
            paths={Path('x')}, sizes=np.arange(2), name=np.str_('a'), kind=torch.float16, seen=defaultdict(int)
        )
        nested.update(raw=b'a', weight=torch.nn.Parameter(torch.ones(1)))
        settings = dict(classes=('a',), things=frozenset('a'), root=Path('x'), size=np.int64(3), nested=nested)
        monkeypatch.setattr(toy.ToyData, 'metainfo', settings)
        Runner.from_cfg(config(tmp_path)).train()
        saved = torch.load(tmp_path / 'epoch_2.pth', weights_only=True)['meta']
        nested = dict(paths=['x'], sizes=[0, 1], name='a', kind=torch.float16, seen={}, raw=b'a', weight=torch.ones(1))
        assert saved['dataset_meta'] == dict(classes=('a',), things=['a'], root='x', size=3, nested=nested)
        assert saved['epoch'] == 2


class BestHook(Hook):
    def before_train(self, runner):
        if not runner.iter:
            runner.message_hub.update_info('best', np.float64(0.5))


def test_a_relative_out_dir_is_found_again(tmp_path, monkeypatch):
    """CheckpointHook notes its checkpoints as seen from where training was started."""
    monkeypatch.chdir(tmp_path)
    for folder, name in (('ckpts/run', 'epoch_3.pth'), ('work_dirs/run', 'last_checkpoint')):
        Path(folder).mkdir(parents=True)
        Path(folder, name).write_text('ckpts/run/epoch_3.pth')
    assert latest_checkpoint('work_dirs/run') == 'ckpts/run/epoch_3.pth'


def test_links_to_nothing_are_no_checkpoints(tmp_path):
    save(tmp_path / 'epoch_2.pth')
    (tmp_path / 'epoch_3.pth').symlink_to('gone.pth')
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'epoch_2.pth')


def test_of_names_that_end_otherwise_the_last_one(tmp_path):
    for name in ('ep1_soft.pth', 'ep3_soft.pth', 'best_ep2_soft.pth'):
        (tmp_path / name).touch()
    assert latest_checkpoint(tmp_path) is None
    (tmp_path / 'last_checkpoint').write_text(f'{tmp_path / "ep3_soft.pth"}\n')  # by an editor
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'ep3_soft.pth')


def test_a_date_is_no_prefix(tmp_path):
    for name in ('20241101.pth', 'epoch_12.pth'):
        (tmp_path / name).touch()
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'epoch_11.pth'))
    assert latest_checkpoint(tmp_path) == str(tmp_path / 'epoch_12.pth')


@pytest.mark.parametrize('name, newest', [('run', 'out/run/epoch_3.pth'), ('fork', 'fork/epoch_12.pth')])
def test_an_out_dir_comes_before_an_earlier_training(tmp_path, monkeypatch, name, newest):
    """CheckpointHook names its folder like the work directory; a copy of a work directory has another name."""
    monkeypatch.chdir(tmp_path)
    for path in (f'{name}/epoch_12.pth', 'out/run/epoch_3.pth'):
        Path(path).parent.mkdir(parents=True)
        save(Path(path))
    Path(name, 'last_checkpoint').write_text('out/run/epoch_3.pth')
    assert latest_checkpoint(name) == newest


def test_the_work_directory_may_be_the_current_one(tmp_path, monkeypatch):
    (tmp_path / 'run').mkdir()
    monkeypatch.chdir(tmp_path / 'run')
    for path in ('epoch_12.pth', 'out/run/epoch_3.pth'):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save(Path(path))
    Path('last_checkpoint').write_text('out/run/epoch_3.pth')
    assert latest_checkpoint('.') == 'out/run/epoch_3.pth'
