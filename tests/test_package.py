"""What `import mmsoft` does and says, and what the setup script says before it downloads anything."""

import ast
import importlib.util
import inspect
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from modelindex.load_model_index import load
from setuptools.config.pyprojecttoml import read_configuration

import mmsoft.apis

ROOT = Path(__file__).resolve().parents[1]


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    command = [sys.executable, '-W', 'ignore', '-c', code]
    return subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@pytest.mark.parametrize('name', ['SOFT', 'SimAXCiT', 'SimADeiT', 'SimACvT', 'RescalePyramid'])
def test_networks_are_had_from_the_package(name):
    assert getattr(mmsoft, name).__name__ == name


@pytest.mark.parametrize('name', ['Nothing', 'nothing', '__nothing__'])
def test_other_names_are_attribute_errors(name):
    with pytest.raises(AttributeError, match=name):
        getattr(mmsoft, name)


def test_type_resolves_from_every_scope_without_custom_imports():
    """The first scope imports the package; the others find it without."""
    scopes = [scope for scope in ('mmpretrain', 'mmseg', 'mmdet') if find_spec(scope)]
    printed = python(
        'from importlib import import_module\n'
        'from mmengine.registry import init_default_scope\n'
        f'for scope in {scopes}:\n'
        '    init_default_scope(scope)\n'
        '    models = import_module(f"{scope}.registry").MODELS\n'
        '    print(type(models.build(dict(type="mmsoft.SOFT", arch="tiny", out_indices=0))).__name__)'
    )
    assert printed.splitlines()[-len(scopes) :] == ['SOFT'] * len(scopes)


SNAPSHOT = """
import logging, os, sys, threading, warnings
import torch, mmcv.cnn, mmengine.fileio, mmengine.model, mmengine.optim, mmengine.registry, mmengine.runner
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.fileio import backends
from mmengine.runner.checkpoint import CheckpointLoader

def state():
    loggers = {name: logger.level for name, logger in logging.root.manager.loggerDict.items()
               if isinstance(logger, logging.Logger) and not name.startswith(('mmsoft', 'torch._'))}
    return dict(
        loaders=dict(CheckpointLoader._schemes), backends=dict(backends.backends),
        prefixes=dict(backends.prefix_to_backends), packages=dict(MODULE2PACKAGE), environment=dict(os.environ),
        filters=list(warnings.filters), root=logging.root.level, disabled=logging.root.manager.disable,
        loggers=loggers, raises=logging.raiseExceptions, threads=torch.get_num_threads(),
        interop=torch.get_num_interop_threads(), running=threading.active_count(), dtype=torch.get_default_dtype(),
        tf32=torch.backends.cuda.matmul.allow_tf32, precision=torch.get_float32_matmul_precision(),
        safe=torch.serialization.get_safe_globals() if hasattr(torch.serialization, 'get_safe_globals') else None,
        excepthook=sys.excepthook, unraisable=sys.unraisablehook, random=torch.get_rng_state().tolist())

before = state()
from mmsoft import SOFT
after = state()
imported = [name for name in sys.modules if name.startswith("mmsoft")]
import mmsoft.apis, mmsoft.utils.cli
loaders = dict(CheckpointLoader._schemes)
"""


def test_importing_changes_nothing_else_and_a_network_imports_few_modules():
    changed, imported, kept = python(
        SNAPSHOT + 'print("changed", *(name for name in before if before[name] != {**after, "loggers": {'
        'key: level for key, level in after["loggers"].items() if key in before["loggers"]}}[name]))\n'
        'print("imported", *imported)\n'
        'print(loaders == before["loaders"])'
    ).splitlines()
    assert changed.split() == ['changed']
    assert len(imported.split()[1:]) <= 40
    assert kept == 'True'


TOOLS = sorted(path.stem for path in (ROOT / 'tools').glob('*.py'))


@pytest.mark.parametrize('tool', TOOLS)
def test_the_tools_hold_no_logic(tool):
    """They are command lines of a screen; what a tool does can be imported."""
    assert len((ROOT / f'tools/{tool}.py').read_text().splitlines()) <= 40


def test_the_package_itself_imports_no_library():
    printed = python('import sys, mmsoft; print(*sys.modules)')
    assert not {'torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain'} & set(printed.split())


def test_a_wrong_option_is_told_before_torch_is_imported():
    """Which takes seconds."""
    printed = python(f"""
import contextlib, io, runpy, sys
from pathlib import Path
for tool in map(str, Path({str(ROOT / 'tools')!r}).glob('*.py')):
    sys.argv = [tool, '--no-such-option', *'abcd']
    with contextlib.redirect_stderr(io.StringIO()) as told, contextlib.suppress(SystemExit):
        runpy.run_path(tool, run_name='__main__')
    assert 'usage: ' in told.getvalue(), told.getvalue()
print(*sys.modules)
""")
    assert not {'torch', 'mmsoft.apis'} & set(printed.split()) and 'mmsoft.utils.cli' in printed.split()


def test_dir_tells_of_what_is_imported_late():
    assert {'SOFT', 'RescalePyramid'} <= set(dir(mmsoft))
    assert {'train', 'test', 'predict', 'visualize', 'export'} <= set(dir(mmsoft.apis))
    assert callable(mmsoft.apis.train)


def pyproject() -> dict:
    return read_configuration(ROOT / 'pyproject.toml', expand=False)['project']


def test_model_index_lists_every_config():
    index = load(str(ROOT / 'model-index.yml'))
    index.build_models_with_collections()
    assert not index.check(silent=True)
    listed = [model.config for model in index.models]
    assert [model.name for model in index.models] == [Path(config).stem for config in listed]
    assert len(set(listed)) == len(listed)
    existing = {str(path.relative_to(ROOT)) for path in (ROOT / 'configs').glob('*.py')}
    assert {config for config in existing if not config.endswith('_shapes.py')} == set(listed)


def test_model_index_credits_the_papers_and_names_no_weights():
    for model in load(str(ROOT / 'model-index.yml')).models:
        assert model.weights is None
        assert not model.results or model.metadata.data['Figures From'] == 'the paper', model.name


# The setup script, on a path that has only what is put there.


@pytest.fixture
def setup(tmp_path):
    """Runs a copy of the setup script with only these commands on the path; whatever pip would do is an error."""
    root, commands = tmp_path / 'copy', tmp_path / 'bin'
    commands.mkdir()
    shutil.copytree(ROOT / 'requirements', root / 'requirements')
    (root / 'tools').mkdir()
    script = shutil.copy(ROOT / 'tools/setup_env.sh', root / 'tools')

    def run(python=None, **env):
        for name in ('bash', 'cat', 'cksum', 'cut', 'dirname', 'mkdir', 'rm', 'sed', 'touch'):
            if not (commands / name).exists():
                (commands / name).symlink_to(shutil.which(name))
        if python:
            (commands / 'python3').write_text(f'#!{shutil.which("bash")}\n{python}\n')
            (commands / 'python3').chmod(0o755)
        return subprocess.run(
            ['bash', script],
            env=dict(PATH=str(commands), **env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    yield run
    assert not list(root.glob('.venv*'))


def answers(version: str) -> str:
    """A Python that only says its version."""
    return f'echo {version} /usr/bin/python{version}'


@pytest.mark.parametrize(
    'python, env, sentence',
    [
        (None, {}, 'no Python 3.11 or 3.10 or 3.9 was found'),
        (answers('3.12'), {}, 'no Python 3.11 or 3.10 or 3.9 was found'),
        (answers('3.9'), dict(STACK='latest'), 'no Python 3.12 or 3.11 or 3.10 was found'),
        (None, dict(STACK='newest'), 'STACK=newest is none of those in requirements/stacks: latest.txt oldest.txt'),
        (answers('3.12'), dict(PYTHON='python3'), 'PYTHON=python3 is Python 3.12, but'),
        (answers('3.11'), dict(PYTHON='python3', STACK='oldest'), 'PYTHON=python3 is Python 3.11, but'),
        (answers('3.8'), dict(PYTHON='python3'), 'PYTHON=python3 is Python 3.8, but'),
        (None, dict(PYTHON='python3.10'), 'PYTHON=python3.10 does not run'),
        (f'exec "{sys.executable}" "$@"', {}, 'no C++ compiler was found'),
        (f'exec "{sys.executable}" "$@"', dict(CXX='absent-c++'), 'no C++ compiler was found'),
        (f'exec "{sys.executable}" "$@"', dict(CXX='rm'), 'rm does not compile C++17'),
    ],
    ids=[
        'no Python',
        'only 3.12',
        'only 3.9 for latest',
        'no stack',
        'PYTHON is 3.12',
        'PYTHON is 3.11 for oldest',
        'PYTHON is 3.8',
        'PYTHON is absent',
        'no compiler',
        'CXX is absent',
        'CXX is no compiler',
    ],
)
def test_setup_says_in_one_sentence_what_is_missing(setup, python, env, sentence):
    if python and python.startswith('exec') and sys.version_info[:2] not in ((3, 9), (3, 10), (3, 11)):
        pytest.skip('the setup script does not take this Python')
    done = setup(python, **env)
    assert done.returncode == 1
    assert done.stdout.startswith(f'mmsoft setup: {sentence}') and done.stdout.count('\n') == 1


def test_setup_says_at_which_step_it_is(tmp_path):
    """Those that were done before are counted, and pass in silence."""
    functions = r'/^say()/p; /^stamp()/p; /^NUMBER=/p; /^step() {/,/^}/p'
    calls = 'step torch -- true; step mmcv -- true; step libraries -- true'
    script = f'source <(sed -n "{functions}" tools/setup_env.sh); STAMPS={tmp_path}; touch "$(stamp mmcv)"; {calls}'
    printed = subprocess.check_output(['bash', '-euc', script], cwd=ROOT, universal_newlines=True).splitlines()
    assert printed == ['mmsoft setup: step 1 of 7: torch', 'mmsoft setup: step 3 of 7: libraries']
    assert len(list(tmp_path.iterdir())) == 3


def test_setup_reads_what_to_install_with_a_setuptools_that_can():
    """Python 3.9 brings one that cannot."""
    (build,) = read_configuration(ROOT / 'pyproject.toml', expand=False)['build-system']['requires']
    assert build in (ROOT / 'requirements/setup.txt').read_text().splitlines()


@pytest.mark.parametrize('step', ['install_libraries', 'install_examples'])
def test_setup_ends_if_it_cannot_read_what_to_install(step):
    functions = f'/^{step}() {{/,/^}}/p'
    script = f'source <(sed -n "{functions}" tools/setup_env.sh); requirements() {{ false; }}; {step}; echo went on'
    done = subprocess.run(
        ['bash', '-euc', f'HOSTS= VENV=absent; compiled() {{ false; }}; pip_install() {{ :; }}; {script}'],
        cwd=ROOT,
        stdout=-1,
    )
    assert done.returncode == 1 and not done.stdout


NVCC = '#!/bin/bash\necho "Cuda compilation tools, release 12.4, V12.4.131"'


@pytest.mark.parametrize(
    'gpu, nvcc, env, device',
    [
        (False, False, {}, 'cpu'),
        (True, False, {}, 'cpu'),
        (True, True, {}, 'CUDA 12.4'),
        (False, True, {}, 'cpu'),
        (False, True, dict(FORCE_CUDA='1'), 'CUDA 12.4'),
    ],
    ids=['cpu', 'GPU without nvcc', 'GPU', 'nvcc alone', 'login node'],
)
def test_setup_compiles_for_the_gpu_that_there_is(tmp_path, gpu, nvcc, env, device):
    """And says so where a GPU goes unused; another device is another stamp, so mmcv is compiled anew."""
    (tmp_path / 'bin').mkdir()
    for name, text in [('nvcc', NVCC)] * nvcc + [('nvidia-smi', '#!/bin/bash\necho GPU 0')] * gpu:
        (tmp_path / 'bin' / name).write_text(text)
        (tmp_path / 'bin' / name).chmod(0o755)
    functions = '/^say()/p; /^has_gpu()/p; /^compile_device() {/,/^}/p; /^warn_of_cpu_operators() {/,/^}/p'
    script = (
        f'source <(sed -n "{functions}" tools/setup_env.sh); DEVICE=$(compile_device); echo "$DEVICE"; '
        'warn_of_cpu_operators'
    )
    path = f'{tmp_path / "bin"}:/usr/bin:/bin'
    done = subprocess.run(
        ['bash', '-euc', script],
        cwd=ROOT,
        env=dict(PATH=path, CUDA_HOME=str(tmp_path), **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.stdout.strip() == device
    warned = gpu and not nvcc
    assert ('set CUDA_HOME' in done.stderr) == warned and ('FORCE_CUDA' in done.stderr) == warned


def test_setup_takes_the_torch_that_torchvision_was_built_for(tmp_path):
    """Not the CPU build, where pip finds one of torch alone."""
    functions = '/^say()/p; /^die()/p; /^install_torch() {/,/^}/p'
    variables = f'VENV={tmp_path} R=requirements PINS=requirements/stacks/latest.txt'
    pip = f'pip_install() {{ echo pip "$@"; [[ $* != torch===* ]] || touch {tmp_path}/fits; }}'
    (tmp_path / 'bin').mkdir()
    (tmp_path / 'bin/python').write_text(f'#!{shutil.which("bash")}\n[ -e {tmp_path}/fits ]\n')
    (tmp_path / 'bin/python').chmod(0o755)
    script = f'source <(sed -n "{functions}" tools/setup_env.sh); {variables}; {pip}; install_torch; install_torch'
    printed = subprocess.check_output(['bash', '-euc', script], cwd=ROOT, universal_newlines=True).splitlines()
    chosen = 'pip -r requirements/setup.txt torch torchvision numpy'
    assert printed[0] == printed[3] == chosen and len(printed) == 4
    assert printed[1].startswith('mmsoft setup: torchvision does not load')
    assert re.fullmatch(r'pip torch===[\d.]+', printed[2])


def made_by_setup() -> bool:
    created = Path(sys.prefix, 'stamps/created')
    return created.exists() and created.read_text().strip() == str(ROOT)


@pytest.mark.skipif(not made_by_setup(), reason='this is not an environment of the setup script')
def test_setup_has_nothing_to_do_twice(tmp_path):
    (tmp_path / 'pip.py').write_text('raise SystemExit("pip was called")')
    env = dict(os.environ, PYTHONPATH=str(tmp_path), STACK=Path(sys.prefix).name.partition('-')[2] or 'stable')
    if shutil.which('nvcc') is None and not Path(os.environ.get('CUDA_HOME', '/usr/local/cuda'), 'bin/nvcc').exists():
        (tmp_path / 'nvidia-smi').write_text('#!/bin/sh\nexit 1\n')  # or each call warns that a GPU has no compiler
        (tmp_path / 'nvidia-smi').chmod(0o755)
        env['PATH'] = f'{tmp_path}:{env["PATH"]}'
    done = subprocess.run(
        ['tools/setup_env.sh'], cwd=ROOT, env=env, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert (done.returncode, done.stdout) == (0, b''), 'run `make setup` after changing requirements'


@pytest.mark.skipif(shutil.which('make') is None, reason='there is no make')
@pytest.mark.parametrize('target', ['setup', 'train', 'segment', 'test', 'test-all', 'bench', 'zoo'])
def test_make_sets_up_and_runs_a_tool(target):
    dry_run = ['make', '--dry-run', '--no-print-directory', target]  # a make around this test would print folders
    lines = subprocess.check_output(dry_run, cwd=ROOT, universal_newlines=True).splitlines()
    assert lines[0] == 'tools/setup_env.sh'
    for line in lines[1:]:
        tool, module = line.split()[1:3]
        found = importlib.util.find_spec(module) if tool == '-m' else (ROOT / tool).is_file()
        assert found, f'make {target} runs {tool} {module}'


def documented():
    """Classes and functions of the package, and the defaults that their docstrings give."""
    for found in pkgutil.walk_packages(mmsoft.__path__, 'mmsoft.'):
        module = importlib.import_module(found.name)
        for name, one in vars(module).items():
            if getattr(one, '__module__', None) == found.name and callable(one):
                text = (inspect.getdoc(one) or '').replace('\n        ', ' ')  # one line for each argument
                pattern = r'^ +(\w+) \((?!dict).*Defaults to (None|True|False|[\d.e-]*\d)'
                for argument, value in re.findall(pattern, text, re.MULTILINE):
                    yield pytest.param(one, argument, ast.literal_eval(value), id=f'{name}-{argument}')


@pytest.mark.parametrize('one, argument, value', [*documented()])
def test_defaults_are_the_documented_ones(one, argument, value):
    assert inspect.signature(one).parameters[argument].default == value
