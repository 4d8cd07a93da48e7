"""Mutation testing: small faults put into the package, and how many of them ``make test`` finds (docs/mutation.md).

mutmut makes the mutants. Its own runner starts a Python for each, whose imports take ten seconds; here, each is a fork of
one process that has imported the libraries, but neither the package nor its tests. Results are appended to a file of JSON
lines, and what is there is not repeated, so that a run can be interrupted.

The sample of a folder is the mutants with the smallest hash of what they change and where. A change of other code keeps them.
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
from importlib.machinery import SourceFileLoader
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = dict(ops=70, attention=55, backbones=60, necks=10, checkpoint=60, engine=50)
# The tests that can reach a folder, besides its own, nearest first.
REACH = dict(
    ops='attention backbones',
    attention='backbones checkpoint test_timm.py',
    backbones='attention test_timm.py checkpoint test_configs.py',
    necks='backbones test_configs.py',
    checkpoint='attention backbones test_timm.py tools/test_convert_checkpoint.py apis/test_predict.py',
    engine='torture/test_disks.py tools test_recipes.py',
)


def without_a_keyword(call):
    """Calls without one of their keyword arguments."""
    for index, arg in enumerate(call.args):
        if arg.keyword:
            yield call.with_changes(args=[*call.args[:index], *call.args[index + 1 :]])


# What nearly every call of a function notices is left out: None as a value or as an argument, and a missing argument.
TRIVIAL = (mutators.operator_assignment, mutators.operator_arg_removal, mutators.operator_dict_arguments)
LIBRARIES = 'mmengine mmcv mmdet.apis mmseg.apis mmpretrain.apis timm onnxruntime torch._dynamo torch.onnx pytest'
OPERATORS = [one for one in mutators.mutation_operators if one[1] not in (*TRIVIAL, mutators.operator_string)]
OPERATORS.append((cst.Call, without_a_keyword))
# Error messages are not mutated, nor types.
SKIPPED = (cst.Annotation, cst.Decorator, cst.Raise, cst.Import, cst.ImportFrom)


class Mutants(cst.CSTVisitor):
    """Collects (identity, node, its mutation) of a module."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, file, module):
        super().__init__()
        self.file, self.module, self.lines, self.scope, self.found = file, module, module.code.splitlines(), [], {}

    def on_visit(self, node):
        if isinstance(node, SKIPPED):
            return False
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self.scope.append(node.name.value)
        for number, (kind, operator) in enumerate(OPERATORS):
            if isinstance(node, kind):
                row = self.get_metadata(PositionProvider, node).start.line
                for mutated in operator(node):
                    change = [' '.join(self.module.code_for_node(one).split()) for one in (node, mutated)]
                    line = self.lines[row - 1].strip()
                    key = dict(file=self.file, function='.'.join(self.scope), line=line, old=change[0], new=change[1])
                    name = hashlib.sha1(repr(sorted(key.items())).encode()).hexdigest()[:12]
                    # Of the mutants that one operator makes of one line, one is enough.
                    rival = self.found.get((row, number))
                    if rival is None or name < rival[0]['name']:
                        self.found[row, number] = dict(key, name=name, row=row), node, mutated
        return True

    def on_leave(self, node):
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self.scope.pop()


def sample(folder, count):
    """The ``count`` mutants of a folder with the smallest hash, as (identity, source)."""
    found = []
    for path in sorted((ROOT / 'mmsoft' / folder).glob('*.py')):
        if path.name != '__init__.py':
            wrapper = MetadataWrapper(cst.parse_module(path.read_text()))
            visitor = Mutants(str(path.relative_to(ROOT)), wrapper.module)
            wrapper.visit(visitor)
            found += [(wrapper.module, *one) for one in visitor.found.values()]
    chosen = sorted(found, key=lambda one: one[1]['name'])[:count]
    return [(key, module.deep_replace(node, mutated).code) for module, key, node, mutated in chosen]


def stages(key, tests):
    """Files of tests, in the order in which they are run: those named after the module, its folder's, and the others."""
    folder, module = Path(key['file']).parts[-2], Path(key['file']).stem

    def files(place):
        found = [place] if place.suffix else place.rglob('test_*.py')
        words = {module, key['function'].split('.')[0]}
        return sorted(found, key=lambda path: ('export' in path.stem, -sum(map(path.read_text().count, words)), path))

    near = files(tests / folder)
    named = [path for path in near if module in path.stem and 'export' not in path.stem]
    others = [path for place in REACH[folder].split() if (tests / place).exists() for path in files(tests / place)]
    return [stage for stage in (named, [path for path in near if path not in named], others) if stage]


class Mutated(SourceFileLoader):
    source = None

    def get_code(self, fullname):
        return compile(self.source, self.path, 'exec')


class Watch:
    """Notes the first test that fails, and ends a run that has taken too long."""

    killer = None

    def __init__(self, limit):
        self.limit = limit

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.killer = self.killer or report.nodeid

    def pytest_collectreport(self, report):
        if report.failed:
            self.killer = self.killer or f'import of {report.nodeid}'

    def pytest_runtest_setup(self, item):
        if sum(os.times()[:4]) > self.limit:
            item.session.shouldstop = 'too long'


def attempt(key, source, options, pipe):
    """In a fork: runs the tests with the mutant, until one fails, and sends its name."""
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (options.limit + 60, options.limit + 65))
    signal.alarm(20 * options.limit)
    os.chdir(options.tests.parent)
    name = key['file'][:-3].replace('/', '.')
    loader = Mutated(name, str(ROOT / key['file']))
    loader.source = source
    spec = importlib.util.spec_from_loader(name, loader)
    finder = type('Finder', (), {'find_spec': staticmethod(lambda one, *_: spec if one == name else None)})
    sys.meta_path.insert(0, finder)
    watch, start = Watch(options.limit + sum(os.times()[:4])), sum(os.times()[:4])
    with open(os.devnull, 'w') as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
        for stage in stages(key, options.tests):
            pytest.main(['-xq', '-pno:cacheprovider', f'-m{options.markers}', *map(str, stage)], [watch])
            if watch.killer or sum(os.times()[:4]) > watch.limit:
                break
    os.write(pipe, json.dumps(dict(killer=watch.killer, seconds=round(sum(os.times()[:4]) - start, 1))).encode())
    os._exit(0)


def run(key, source, options):
    end, pipe = os.pipe()
    child = os.fork()
    if not child:
        try:
            attempt(key, source, options, pipe)
        finally:
            os._exit(1)
    os.close(pipe)
    said = b''.join(iter(lambda: os.read(end, 4096), b''))
    os.close(end)
    os.waitpid(child, 0)
    # A test that never ends, or that ends the process, has noticed the mutant, too.
    return dict(key, **(json.loads(said) if said else dict(killer='no end', seconds=options.limit + 60)))


def read(path):
    """Results by the names of the mutants, the latest of each."""
    lines = path.read_text().splitlines() if path.exists() else ()
    return {one['name']: one for one in map(json.loads, lines)}


def table(results):
    yield '| folder | mutants | found | score |\n| --- | --- | --- | --- |'
    for folder in [*SAMPLE, '']:
        found = [bool(one['killer']) for one in results if one['file'].startswith(f'mmsoft/{folder}')]
        if found:
            yield f'| {folder or "all"} | {len(found)} | {sum(found)} | {sum(found) / len(found):.0%} |'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('folders', nargs='*', help=f'of {", ".join(SAMPLE)}; all by default')
    parser.add_argument('--out', type=Path, default=ROOT / 'work_dirs/mutants.jsonl')
    parser.add_argument('--tests', type=Path, default=ROOT / 'tests', help='the folder of tests')
    parser.add_argument('--markers', default='not slow', help="pytest's -m")
    parser.add_argument('--limit', type=int, default=15, help='CPU seconds, after which a mutant has survived')
    parser.add_argument('--survivors', action='store_true', help='run those again that survived')
    options = parser.parse_args()
    options.tests, options.out = options.tests.resolve(), options.out.resolve()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    chosen = [one for folder in options.folders or SAMPLE for one in sample(folder, SAMPLE[folder])]
    done = read(options.out)
    if options.survivors:
        chosen = [one for one in chosen if one[0]['name'] in done]
        done = {name: one for name, one in done.items() if one['killer']}
    os.environ.update(OMP_NUM_THREADS='1', PYTHONPATH=str(ROOT))
    sys.path[:0] = [str(ROOT)]
    for library in LIBRARIES.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    for key, source in chosen:
        if key['name'] not in done:
            result = run(key, source, options)
            with open(options.out, 'a') as file:
                file.write(json.dumps(result) + '\n')
            place, change = f'{key["file"]}:{key["row"]}', f'{key["old"]!r} -> {key["new"]!r}'
            print(f'{place} {change}: {result["killer"] or "SURVIVED"}, {result["seconds"]} s', flush=True)
    results = read(options.out)
    print(*table([results[key['name']] for key, _ in chosen]), sep='\n')


if __name__ == '__main__':
    main()
