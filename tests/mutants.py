"""Mutation testing: small faults put into the package, and how many of them ``make test`` finds (docs/mutation.md).

mutmut makes the mutants; its own runner would start a Python for each, whose imports take ten seconds. Here, each mutant is
a fork of one process that has imported the libraries, but neither the package nor its tests. Results are lines of JSON; what
is there is not repeated. The sample of a folder is the mutants with the smallest hash, so a change elsewhere keeps them.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import resource
import signal
import sys
from collections import Counter
from importlib.machinery import SourceFileLoader
from pathlib import Path

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

ROOT = Path(__file__).resolve().parent.parent
# Mutants of each folder, and the tests that can reach it besides its own, nearest first.
SAMPLE = dict(ops=70, attention=55, backbones=60, necks=10, checkpoint=60, engine=50)
REACH = dict(
    ops='attention backbones',
    attention='backbones checkpoint test_timm.py test_timm_weights.py',
    backbones='attention test_timm.py test_timm_weights.py checkpoint test_configs.py',
    necks='backbones test_configs.py',
    checkpoint='attention backbones test_timm_weights.py tools/test_convert_checkpoint.py apis/test_predict.py',
    engine='torture/test_disks.py tools test_recipes.py',
)
LIBRARIES = 'mmengine mmcv mmdet.apis mmseg.apis mmpretrain.apis timm onnxruntime torch._dynamo torch.onnx'


def without_a_keyword(call):
    for index, arg in enumerate(call.args):
        if arg.keyword:
            yield call.with_changes(args=[*call.args[:index], *call.args[index + 1 :]])


# Error messages and types are left out, and what nearly every call notices: None for a value, a missing argument.
TRIVIAL = {f'operator_{name}' for name in ('string', 'assignment', 'arg_removal', 'dict_arguments')}
OPERATORS = [one for one in mutators.mutation_operators if one[1].__name__ not in TRIVIAL]
OPERATORS.append((cst.Call, without_a_keyword))
SKIPPED = (cst.Annotation, cst.Decorator, cst.Raise, cst.Import, cst.ImportFrom)


class Mutants(cst.CSTVisitor):
    """Collects mutants of a module, one of each operator in each line: what identifies it, the node and its mutation."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, file, module):
        super().__init__()
        self.file, self.module, self.lines, self.scope, self.found = file, module, module.code.splitlines(), [], {}

    def on_visit(self, node):
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self.scope.append(node.name.value)
        for number, (kind, operator) in enumerate(OPERATORS):
            for mutated in operator(node) if isinstance(node, kind) else ():
                row = self.get_metadata(PositionProvider, node).start.line
                old, new = (' '.join(self.module.code_for_node(one).split()) for one in (node, mutated))
                line, function = self.lines[row - 1].strip(), '.'.join(self.scope)
                key = dict(file=self.file, function=function, line=line, old=old, new=new)
                key['name'] = hashlib.sha1(repr(sorted(key.items())).encode()).hexdigest()[:12]
                rival = self.found.get((row, number))
                if rival is None or key['name'] < rival[0]['name']:
                    self.found[row, number] = dict(key, row=row), node, mutated
        return not isinstance(node, SKIPPED)

    def on_leave(self, node):
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self.scope.pop()


def sample(folder):
    """The mutants of a folder with the smallest hash: what identifies them, and the module's source."""
    found = []
    for path in sorted((ROOT / 'mmsoft' / folder).glob('[!_]*.py')):
        wrapper = MetadataWrapper(cst.parse_module(path.read_text()))
        visitor = Mutants(str(path.relative_to(ROOT)), wrapper.module)
        wrapper.visit(visitor)
        found += [(wrapper.module, *one) for one in visitor.found.values()]
    chosen = sorted(found, key=lambda one: one[1]['name'])[: SAMPLE[folder]]
    return [(key, module.deep_replace(node, mutated).code) for module, key, node, mutated in chosen]


def stages(key, tests, results):
    """Tests, as they are run: the best finders of other mutants of the file, then files: those named after the module,
    its folder's, the others; exports take long.
    """
    finders = Counter(one['killer'] for one in results if one['file'] == key['file'] and '::' in (one['killer'] or ''))
    best = [tests.parent / name for name, _ in finders.most_common(8)]
    folder, module = Path(key['file']).parts[-2], Path(key['file']).stem
    words = key['function'].split('.')[0] or module, module  # files that know the function come first

    def files(place):
        found = [place] if place.suffix else place.rglob('test_*.py')
        order = {path: ('export' in path.stem, *(-path.read_text().count(word) for word in words)) for path in found}
        return sorted(order, key=lambda path: (order[path], path))

    near = files(tests / folder)
    named = [path for path in near if module in path.stem and 'export' not in path.stem]
    others = [path for place in REACH[folder].split() if (tests / place).exists() for path in files(tests / place)]
    return [stage for stage in (best, named, [path for path in near if path not in named], others) if stage]


class Mutated(SourceFileLoader):
    def get_code(self, fullname):
        return compile(self.source, self.path, 'exec')


def cpu():
    return sum(os.times()[:4])


class Watch:
    """Notes the first test that fails, and ends a run that has taken too long."""

    killer = None

    def __init__(self, limit):
        self.limit = limit

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.killer = self.killer or report.nodeid

    pytest_collectreport = pytest_runtest_logreport

    def pytest_runtest_setup(self, item):
        if cpu() > self.limit:
            item.session.shouldstop = 'too long'


def attempt(key, source, results, options, pipe):
    """In a fork: runs the tests with the mutant in the module's place until one fails, and sends its name."""
    resource.setrlimit(resource.RLIMIT_CPU, (options.limit + 60, options.limit + 65))
    signal.alarm(20 * options.limit)
    os.chdir(options.tests.parent)
    name = key['file'][:-3].replace('/', '.')
    loader = Mutated(name, str(ROOT / key['file']))
    loader.source = source
    spec = importlib.util.spec_from_loader(name, loader)
    sys.meta_path.insert(0, type('', (), dict(find_spec=staticmethod(lambda one, *_: spec if one == name else None))))
    watch = Watch(options.limit)
    with open(os.devnull, 'w') as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        for stage in stages(key, options.tests, results):
            pytest.main(['-xq', '-pno:cacheprovider', f'-m{options.markers}', *map(str, stage)], [watch])
            if watch.killer or cpu() > watch.limit:
                break
    os.write(pipe, json.dumps(dict(killer=watch.killer, seconds=round(cpu(), 1))).encode())


def run(key, source, results, options):
    end, pipe = os.pipe()
    if not os.fork():
        with contextlib.suppress(BaseException):
            attempt(key, source, results, options, pipe)
        os._exit(0)
    os.close(pipe)
    with open(end) as sent:
        said = sent.read()
    os.wait()
    # A test that never ends, or that ends the process, has noticed the mutant, too.
    return dict(key, **(json.loads(said) if said else dict(killer='no end', seconds=options.limit + 60)))


def read(path):
    """Results by the names of the mutants, the latest of each."""
    return {one['name']: one for one in map(json.loads, path.read_text().splitlines())} if path.exists() else {}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('folders', nargs='*', default=list(SAMPLE), help=f'of {", ".join(SAMPLE)}; all by default')
    parser.add_argument('--out', type=Path, default=ROOT / 'work_dirs/mutants.jsonl')
    parser.add_argument('--tests', type=Path, default=ROOT / 'tests', help='the folder of tests')
    parser.add_argument('--markers', default='not slow', help="pytest's -m")
    parser.add_argument('--limit', type=int, default=30, help='CPU seconds, after which a mutant has survived')
    parser.add_argument('--survivors', action='store_true', help='run those again that survived')
    options = parser.parse_args()
    options.tests, options.out = options.tests.resolve(), options.out.resolve()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    os.environ.update(OMP_NUM_THREADS='1', PYTHONPATH=str(ROOT))
    sys.path.insert(0, str(ROOT))
    for library in LIBRARIES.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    for folder in options.folders:
        done, chosen = read(options.out), sample(folder)
        for key, source in chosen:
            known = done.get(key['name'])
            if known is None or (options.survivors and not known['killer']):
                result = done[key['name']] = run(key, source, done.values(), options)
                with open(options.out, 'a') as file:
                    file.write(json.dumps(result) + '\n')
                change = f'{key["file"]}:{key["row"]} {key["old"]!r} -> {key["new"]!r}'
                print(f'{change}: {result["killer"] or "SURVIVED"}, {result["seconds"]} s', flush=True)
        found = sum(bool(done[key['name']]['killer']) for key, _ in chosen)
        print(f'{folder}: {found} of {len(chosen)} mutants found, {found / len(chosen):.0%}', flush=True)


if __name__ == '__main__':
    main()
