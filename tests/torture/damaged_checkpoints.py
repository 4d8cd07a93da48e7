"""Checkpoints that nobody should trust, made from good ones by a seeded generator."""

import argparse
import io
import os
import pickle
import random
import struct
import tarfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Callable

import numpy as np
import safetensors.torch
import torch
from mmengine.logging import HistoryBuffer

FORMATS = ('zip', 'legacy', 'safetensors')


def save(path: Path, content: dict, form: str) -> Path:
    """Writes a checkpoint; a safetensors file gets the tensors alone, and the suffix."""
    if form == 'safetensors':
        path = path.with_suffix('.safetensors')
        tensors = content.get('state_dict', content)
        safetensors.torch.save_file({str(k): t.contiguous().clone() for k, t in tensors.items()}, str(path))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == 'zip')
    return path


def trained(weights: dict[str, torch.Tensor]) -> dict:
    """What mmengine saves around weights."""
    hub = dict(
        log_scalars=dict(loss=HistoryBuffer([0.5, 0.25], [1, 1])),
        runtime_info=dict(iter=2, loss=np.float64(1.5)),
        resumed_keys=dict(iter=True, loss=True),
    )
    return dict(
        state_dict=OrderedDict(weights),
        message_hub=hub,
        meta=dict(epoch=1, iter=2, cfg='a = 1', seed=0),
        optimizer=dict(state={0: dict(step=torch.tensor(2.0))}, param_groups=[dict(params=[0], lr=0.1)]),
        param_schedulers=[dict(last_step=2)],
    )


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function: Callable, *args) -> None:
        self.call = function, args

    def __reduce__(self):
        return self.call


class Generator:
    """Makes files that are wrong in one way.

    Args:
        weights (dict[str, Tensor]): The good weights.
        folder (Path): Where the files go. One called ``ran`` appears there if a file's code runs.
    """

    def __init__(self, weights: dict[str, torch.Tensor], folder: Path) -> None:
        self.weights, self.folder, self.canary = weights, folder, folder / 'ran'

    def make(self, kind: str, rng: random.Random, number: int) -> Path:
        form = rng.choice(FORMATS)
        return getattr(self, kind)(rng, self.folder / f'{number}-{kind}.pth', form)

    @classmethod
    def kinds(cls) -> list:
        return [name for name in vars(cls) if not name.startswith('_') and name not in ('make', 'kinds')]

    # Damaged bytes

    def cut(self, rng, path, form):
        path = save(path, trained(self.weights), form)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * rng.random())])
        return path

    def flipped_bits(self, rng, path, form):
        path = save(path, trained(self.weights), form)
        data = bytearray(path.read_bytes())
        reach = rng.choice([200, 4000, len(data)])  # where the structure is, or anywhere
        for _ in range(rng.choice([1, 1, 3, 30])):
            place = rng.randrange(min(reach, len(data)))
            data[place if rng.random() < 0.7 else len(data) - 1 - place] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        return path

    def flipped_structure(self, rng, path, form):
        """Bits of the pickle alone, checksums made to fit."""
        path = save(path, trained(self.weights), 'zip')
        with zipfile.ZipFile(path) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        name = next(name for name in entries if name.endswith('data.pkl'))
        data = bytearray(entries[name])
        for _ in range(rng.choice([1, 2, 10])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return self._repacked(path, {**entries, name: bytes(data)})

    def swapped_bytes(self, rng, path, form):
        path = save(path, trained(self.weights), form)
        data = bytearray(path.read_bytes())
        size = rng.choice([4, 100, 1000])
        a, b = (rng.randrange(max(1, len(data) - size)) for _ in range(2))
        data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
        path.write_bytes(data)
        return path

    # Other contents

    def swapped_tensors(self, rng, path, form):
        names = list(self.weights)
        tensors = [self.weights[name] for name in names]
        rng.shuffle(tensors)
        return save(path, trained(dict(zip(names, tensors))), form)

    def wrong_types(self, rng, path, form):
        types = [torch.int64, torch.bool, torch.complex64, torch.float64, torch.bfloat16, torch.uint8]
        return self._changed(rng, path, form, lambda t: t.to(rng.choice(types)))

    def wrong_shapes(self, rng, path, form):
        changes = [
            lambda t: t[None],
            lambda t: t.flatten(),
            lambda t: t[:0] if t.dim() else t,
            lambda t: t.new_zeros(()),
            lambda t: t.repeat(*[2] * t.dim()) if t.dim() else t,
            lambda t: t.transpose(0, -1) if t.dim() else t,
        ]
        return self._changed(rng, path, form, lambda t: rng.choice(changes)(t))

    def wrong_names(self, rng, path, form):
        names = [
            '../../x',
            '/etc/passwd',
            '',
            '.',
            'a\nb',
            '\x1b[31mred',
            'x' * 5000,
            'backbone.',
            'module.module.',
            'ü' * 9,
            '__class__',
            'backbone.stages.99.blocks.0.norm1.weight',
            'stages.0.blocks.x.y',
        ]
        names += [] if form == 'safetensors' else [3, None, (1, 2), 2.5, True, b'bytes']
        weights = {rng.choice(names) if rng.random() < 0.2 else name: t for name, t in self.weights.items()}
        return save(path, trained(weights), form)

    def wrong_values(self, rng, path, form):
        values = [3, None, 'text', [1], {}, torch.zeros(2), [torch.zeros(1)], b'bytes', 2.5, {'a': {'b': {}}}]
        content = trained(self.weights)
        for _ in range(rng.randrange(1, 4)):
            content[rng.choice([*content, 'model', 'state_dict_ema', 'args'])] = rng.choice(values)
        form = 'zip' if form == 'safetensors' else form
        return save(path, content, form)

    def wrong_meta(self, rng, path, form):
        values = [3, None, 'text', [1], {}, torch.zeros(2)]
        content = trained(self.weights)
        part = content[rng.choice(['meta', 'message_hub', 'optimizer'])]
        part[rng.choice(list(part))] = rng.choice(values)
        return save(path, content, 'legacy' if form == 'legacy' else 'zip')

    def no_number(self, rng, path, form):
        value = rng.choice([float('nan'), float('inf'), -float('inf')])

        def spoiled(tensor):
            tensor = tensor.clone().to(rng.choice([torch.float32, torch.float16, torch.bfloat16]))
            tensor.view(-1)[rng.randrange(tensor.numel())] = value
            return tensor

        return self._changed(rng, path, form, lambda t: spoiled(t) if t.is_floating_point() else t, share=0.1)

    # Code

    def calls(self, rng, path, form):
        canary = str(self.canary)
        call = rng.choice(
            [
                Call(os.system, f'touch {canary}'),
                Call(os.mkdir, canary),
                Call(open, canary, 'w'),
                Call(eval, f'open({canary!r}, "w")'),
                Call(exec, f'open({canary!r}, "w")'),
                Call(__import__('subprocess').call, ['touch', canary]),
                Call(torch.save, 1, canary),
                Call(np.save, canary, 1),
                Call(torch.hub.download_url_to_file, Path('/etc/hostname').as_uri(), canary),
                Call(getattr, Call(__import__, 'os'), 'mkdir'),
                Call(bytes, 3),
                Call(print, 'x'),
            ]
        )
        content = trained(self.weights)
        place = rng.choice(['state_dict', 'optimizer', 'meta', 'message_hub', 'args'])
        if place == 'args':
            content['args'] = argparse.Namespace(x=call)
        else:
            content[place]['x'] = call
        if rng.random() < 0.2:
            content = call
        return save(path, content, 'legacy' if form == 'legacy' else 'zip')

    def calls_by_hand(self, rng, path, form):
        """Opcodes that no pickler of torch writes."""
        command = f'touch {self.canary}'
        pickles = [
            f"cos\nsystem\n(S'{command}'\ntR.",
            f"(S'{command}'\nios\nsystem\n.",
            f"(cos\nsystem\nS'{command}'\no.",
            f'c__builtin__\neval\n(S\'open({str(self.canary)!r}, "w")\'\ntR.',
        ]
        data = rng.choice(
            [text.encode() for text in pickles]
            + [
                pickle.dumps(Call(os.system, command), 4),
                b'\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c' + bytes([len(command)]) + command.encode() + b'\x85R.',
            ]
        )
        if form == 'zip':
            save(path, trained(self.weights), 'zip')
            with zipfile.ZipFile(path) as archive:
                entries = {name: archive.read(name) for name in archive.namelist()}
            name = next(name for name in entries if name.endswith('data.pkl'))
            return self._repacked(path, {**entries, name: data})
        head = (
            b''
            if form == 'safetensors'
            else b''.join(
                pickle.dumps(part, 2)
                for part in (torch.serialization.MAGIC_NUMBER, torch.serialization.PROTOCOL_VERSION, {})
            )
        )
        path.write_bytes(head + data)
        return path

    def config_that_runs(self, rng, path, form):
        """mmengine runs ``meta['config']`` when it resumes."""
        content = trained(self.weights)
        content['meta']['config'] = f'open({str(self.canary)!r}, "w")'
        return save(path, content, 'legacy' if form == 'legacy' else 'zip')

    def attributes_that_lie(self, rng, path, form):
        content = trained(self.weights)
        vars(content['state_dict']).update(
            rng.choice(
                [
                    dict(items=torch.Tensor),
                    dict(keys=torch.Size),
                    dict(_metadata=3),
                    dict(_metadata={'': 3}),
                    dict(copy=1),
                ]
            )
        )
        return save(path, content, 'legacy' if form == 'legacy' else 'zip')

    def programs(self, rng, path, form):
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(path))
        return path

    # Bombs

    def packed(self, rng, path, form):
        weights = {**self.weights, 'bomb': torch.zeros(rng.choice([2**20, 2**26]))}
        save(path, trained(weights), 'zip')
        with zipfile.ZipFile(path) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        return self._repacked(path, entries, zipfile.ZIP_DEFLATED)

    def overlapping(self, rng, path, form):
        """Two entries of the directory share the bytes of one."""
        weights = {**self.weights, **{f'bomb{i}': torch.zeros(2**16) for i in range(9)}}
        save(path, trained(weights), 'zip')
        data = path.read_bytes()
        start = struct.unpack('<I', data[-6:-2])[0]
        with zipfile.ZipFile(path) as archive:
            first = archive.infolist()[2]
        records, place = data[: first.header_offset + 10**5], data.find(b'PK\x01\x02')
        path.write_bytes(
            records + data[place:-6] + struct.pack('<I', len(records)) + data[-2:] if place > 0 and start else records
        )
        return path

    def stretched(self, rng, path, form):
        bomb = torch.zeros(1).expand(rng.choice([10**7, 10**12]))
        weights = {**self.weights, rng.choice([*self.weights]): bomb}
        return save(path, trained(weights), 'legacy' if form == 'legacy' else 'zip')

    def longer_than_its_record(self, rng, path, form):
        """The length of a storage is in the pickle, too, and torch takes it from there."""
        save(path, trained({**self.weights, 'x': torch.zeros(54321)}), 'zip')
        length = struct.pack('<I', 54321)
        with zipfile.ZipFile(path) as archive:
            entries = {name: archive.read(name) for name in archive.namelist()}
        name = next(name for name in entries if name.endswith('data.pkl'))
        assert entries[name].count(b'M' + length[:2]) >= 1
        huge = b'J' + struct.pack('<i', rng.choice([10**5, 2**31 - 1]))
        return self._repacked(path, {**entries, name: entries[name].replace(b'M' + length[:2], huge)})

    def bytes_by_number(self, rng, path, form):
        content = dict(trained(self.weights), x=Call(bytearray, rng.choice([10**9, 10**12])))
        return save(path, content, 'legacy' if form == 'legacy' else 'zip')

    def endless(self, rng, path, form):
        content = trained(self.weights)
        loop = []
        for _ in range(100):
            loop = [loop, loop]
        content['x'] = loop
        content['meta']['self'] = content
        return save(path, content, 'legacy' if form == 'legacy' else 'zip')

    # No files

    def folder_for_file(self, rng, path, form):
        path.mkdir()
        return path

    def pipe(self, rng, path, form):
        os.mkfifo(path)
        return path

    def circle(self, rng, path, form):
        other = path.with_name(f'{path.name}.other')
        path.symlink_to(other)
        other.symlink_to(path)
        return path

    def device(self, rng, path, form):
        path.symlink_to('/dev/zero')
        return path

    def other_files(self, rng, path, form):
        path = path.with_suffix(rng.choice(['.pth', '.safetensors', '']))
        contents = [
            b'',
            b'PK\x03\x04',
            b'PK\x05\x06' + bytes(18),
            b'<html>',
            b'\x89PNG\r\n\x1a\n',
            b'\x80\x02.',
            bytes(99),
            b'\x80\x02}.',
            b'\xff' * 8 + b'{}',
            struct.pack('<Q', 2**40) + b'{}',
            rng.randbytes(1000),
        ]
        path.write_bytes(rng.choice(contents))
        return path

    def tar(self, rng, path, form):
        with tarfile.open(path, 'w') as archive:
            for name in ('storages', 'tensors', 'pickle', '../../x'):
                entry = tarfile.TarInfo(name)
                data = pickle.dumps(Call(os.mkdir, str(self.canary)), 2)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        return path

    def odd_paths(self, rng, path, form):
        name = rng.choice(
            ['a b.pth', 'ü名.pth', 'a\nb.pth', '-x.pth', '\x1b[31m.pth', '%s{}.pth', '$HOME.pth', '~x.pth']
        )
        folder = path.with_suffix('')
        folder.mkdir()
        (folder / name).write_bytes(rng.choice([b'', b'<html>', b'PK\x03\x04']))
        return folder / name

    def _changed(self, rng, path, form, change, share=0.3):
        names = {name for name in self.weights if rng.random() < share} or {next(iter(self.weights))}
        weights = {name: change(t) if name in names else t for name, t in self.weights.items()}
        return save(path, trained(weights), form)

    @staticmethod
    def _repacked(path, entries, compression=zipfile.ZIP_STORED):
        with zipfile.ZipFile(path, 'w', compression) as archive:
            for name, data in entries.items():
                archive.writestr(name, data)
        return path
