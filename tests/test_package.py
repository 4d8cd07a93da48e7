"""What `import mmsoft` does and says, and what the setup script says before it downloads anything."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from modelindex.load_model_index import load
from setuptools.config.pyprojecttoml import read_configuration

import mmsoft.apis
from mmsoft.utils import hosts

ROOT = Path(__file__).resolve().parents[1]
INSTALLED = dict(mmengine='0.10.7', mmcv='2.1.0', mmdet='3.3.0', mmsegmentation='1.2.2', mmpretrain='1.2.0')


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    command = [sys.executable, '-W', 'ignore', '-c', code]
    return subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@pytest.fixture
def install(monkeypatch):
    """Pretends that these distributions are installed, and no others."""

    def pretend(**versions):
        versions = {name.replace('_', '-'): number for name, number in versions.items()}

        def version(name):
            if name in versions:
                return versions[name]
            raise PackageNotFoundError(name)

        monkeypatch.setattr(hosts, 'version', version)
        operators = {'mmcv', 'onedl-mmcv'} & set(versions)
        monkeypatch.setattr(hosts, 'find_spec', lambda name: operators if name == 'mmcv._ext' and operators else None)

    return pretend


def check_all():
    hosts.check_hosts()
    for module in ('mmdet', 'mmseg', 'mmpretrain'):
        if hosts.installed(module):
            mmsoft.require_host(module)


@pytest.mark.parametrize('name', ['SOFT', 'SimAXCiT', 'SimADeiT', 'SimACvT', 'RescalePyramid'])
def test_networks_are_had_from_the_package(name):
    assert getattr(mmsoft, name).__name__ == name


@pytest.mark.parametrize('name', ['Nothing', 'nothing', '__nothing__'])
def test_other_names_are_attribute_errors(name):
    with pytest.raises(AttributeError, match=name):
        getattr(mmsoft, name)


def test_type_resolves_from_every_scope_without_custom_imports():
    """The first scope imports the package; the others find it without."""
    scopes = [scope for scope in ('mmpretrain', 'mmseg', 'mmdet') if hosts.installed(scope)]
    printed = python(
        'from importlib import import_module\n'
        'from mmengine.registry import init_default_scope\n'
        f'for scope in {scopes}:\n'
        '    init_default_scope(scope)\n'
        '    models = import_module(f"{scope}.registry").MODELS\n'
        '    print(type(models.build(dict(type="mmsoft.SOFT", arch="tiny"))).__name__)'
    )
    assert printed.splitlines()[-len(scopes) :] == ['SOFT'] * len(scopes)


FORKS = dict(
    onedl_mmengine='0.10.12',
    onedl_mmcv='2.3.6',
    onedl_mmdetection='3.5.1',
    onedl_mmsegmentation='1.4.2',
    onedl_mmpretrain='1.3.6',
)


@pytest.mark.parametrize(
    'versions',
    [
        INSTALLED,
        dict(mmengine='0.10.0', mmcv='2.0.0'),
        dict(mmengine='0.10.7', mmcv='2.1.9+cu121', mmdet='3.1.0'),
        dict(mmengine='0.10.7', mmcv_lite='2.1.0'),
        dict(mmengine='0.10.7', mmcv='2.2.0', mmpretrain='1.2.0'),
        dict(INSTALLED, pycocotools='2.0.7', transformers='4.51.3'),
        dict(mmengine='0.10.7', mmcv='2.1.0', mmdet='3.3.0', pycocotools='2.0.7', transformers='5.23.0'),
        dict(mmengine='0.10.7', mmcv='2.1.0', mmpretrain='1.2.0', transformers='5.23.0'),
        dict(FORKS, pycocotools='2.0.7', transformers='4.57.6'),
    ],
    ids=[
        'tested',
        'no host',
        'only mmdet',
        'mmcv-lite',
        'new mmcv without mmdet',
        'old transformers',
        'transformers without mmpretrain',
        'transformers without pycocotools',
        'forks',
    ],
)
def test_versions_that_fit(install, versions):
    install(**versions)
    check_all()


@pytest.mark.parametrize(
    'change, fault',
    [
        (dict(mmengine=None), 'needs mmengine, which is not installed'),
        (dict(mmcv=None), 'needs mmcv, which is not installed'),
        (dict(mmengine='0.9.1'), 'mmengine 0.9.1, which is too old'),
        (dict(mmengine='1.0.0'), 'mmengine 1.0.0, which is too new'),
        (dict(mmcv='1.7.2'), 'mmcv 1.7.2, which is too old'),
        (dict(mmcv='2.2.0'), 'mmcv 2.2.0, which is too new'),
        (dict(mmcv='2.2.0rc1'), 'mmcv 2.2.0rc1, which is too new'),
        (dict(mmcv='2.2.0', mmsegmentation=None), 'mmcv 2.2.0, which is too new'),
        (dict(mmcv='2.2.0', mmdet=None), 'mmcv 2.2.0, which is too new'),
        (dict(mmcv=None, onedl_mmcv='2.3.6'), 'onedl-mmcv 2.3.6, which is too new'),
        (dict(mmdet='3.0.0'), 'mmdet 3.0.0, which is too old'),
        (dict(mmsegmentation='1.3.0'), 'mmsegmentation 1.3.0, which is too new'),
        (dict(mmpretrain='1.10.0'), 'mmpretrain 1.10.0, which is too new'),
        (dict(mmdet=None, onedl_mmdetection='4.0.0'), 'onedl-mmdetection 4.0.0, which is too new'),
    ],
    ids=lambda value: None if isinstance(value, str) else '-'.join(f'{k} {v}' for k, v in value.items()),
)
def test_versions_that_do_not_fit_are_one_sentence_with_the_tested_ones(install, change, fault):
    install(**{name: version for name, version in {**INSTALLED, **change}.items() if version})
    with pytest.raises(ImportError) as error:
        check_all()
    message = str(error.value)
    assert fault in message and '\n' not in message
    for name, version in INSTALLED.items():
        assert f'{name} {version}' in message


FAKED = (
    'import importlib.metadata as metadata\n'
    'true = metadata.version\n'
    'metadata.version = lambda name: "1.7.2" if name == "mmcv" else true(name)\n'
)


def test_an_unfit_host_is_one_sentence_from_the_networks():
    printed = python(FAKED + 'try:\n    from mmsoft import SOFT\nexcept ImportError as error:\n    print(error)')
    assert 'mmcv 1.7.2, which is too old' in printed


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
"""


def test_importing_a_network_changes_nothing_else_and_imports_few_modules():
    changed, imported = python(
        SNAPSHOT + 'print("changed", *(name for name in before if before[name] != {**after, "loggers": {'
        'key: level for key, level in after["loggers"].items() if key in before["loggers"]}}[name]))\n'
        'print("imported", *(name for name in sys.modules if name.startswith("mmsoft")))'
    ).splitlines()
    assert changed.split() == ['changed']
    assert len(imported.split()[1:]) <= 40


TOOLS = sorted(path.stem for path in (ROOT / 'tools').glob('*.py'))


@pytest.mark.parametrize('tool', TOOLS)
def test_an_unfit_host_is_one_sentence_from_the_tools(tool):
    faked = FAKED + (
        f'import runpy, sys\nsys.argv = ["{tool}"]\nrunpy.run_path("tools/{tool}.py", run_name="__main__")'
    )
    done = subprocess.run([sys.executable, '-c', faked], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert 'mmcv 1.7.2, which is too old' in done.stderr.strip() and '\n' not in done.stderr.strip()


@pytest.mark.parametrize('tool', TOOLS)
def test_the_tools_hold_no_logic(tool):
    """They are command lines of a screen; what a tool does can be imported."""
    assert len((ROOT / f'tools/{tool}.py').read_text().splitlines()) <= 40


@pytest.mark.parametrize('module', ['mmsoft', 'mmsoft.apis', 'mmsoft.apis.cli'])
def test_no_host_is_needed_to_say_what_is_wrong(module):
    printed = python(f'import sys, {module}; print(*sys.modules)')
    assert not {'torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain'} & set(printed.split())


def test_dir_tells_of_what_is_imported_late():
    assert {'SOFT', 'RescalePyramid', 'require_host'} <= set(dir(mmsoft))
    assert {'train', 'test', 'predict', 'visualize', 'export'} <= set(dir(mmsoft.apis))
    assert callable(mmsoft.apis.train)


def test_require_host_names_what_needs_it(install):
    install(mmengine='0.10.7', mmcv='2.1.0')
    with pytest.raises(hosts.HostError, match='tools/train.py needs mmseg, which is not installed'):
        mmsoft.require_host('mmseg', 'tools/train.py')


def test_mmdet_needs_the_compiled_operators(install):
    install(mmengine='0.10.7', mmcv_lite='2.1.0', mmdet='3.3.0', mmsegmentation='1.2.2')
    mmsoft.require_host('mmseg')
    with pytest.raises(hosts.HostError, match='compiled operators'):
        mmsoft.require_host('mmdet')


def pyproject() -> dict:
    return read_configuration(ROOT / 'pyproject.toml', expand=False)['project']


def test_requirements_say_the_same_versions():
    lines = (ROOT / 'requirements/mminstall.txt').read_text().split()
    lines += [one for one in pyproject()['optional-dependencies']['openmmlab'] if one.startswith('mm')]
    first = [next(iter(fitting.items())) for fitting in hosts.HOSTS.values()]
    assert {name + fits for name, fits in first} == set(lines)
    pinned = (ROOT / 'requirements/stacks/stable.txt').read_text().split()
    assert {one.replace(' ', '==') for one in hosts.TESTED.split(', ')} <= set(pinned)


@pytest.mark.parametrize('stack', sorted(path.stem for path in (ROOT / 'requirements/stacks').iterdir()))
def test_hosts_of_a_stack_fit_together(install, stack):
    lines = (ROOT / f'requirements/stacks/{stack}.txt').read_text().splitlines()
    versions = dict(line.split('==') for line in lines if '==' in line)
    install(**versions)
    check_all()
    names = {name for fitting in hosts.HOSTS.values() for name in fitting}
    assert len(names & set(versions)) == (4 if stack == 'oldest' else 5)


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
        (f'exec {sys.executable} "$@"', {}, 'no C++ compiler was found'),
        (f'exec {sys.executable} "$@"', dict(CXX='absent-c++'), 'no C++ compiler was found'),
        (f'exec {sys.executable} "$@"', dict(CXX='rm'), 'rm does not compile C++17'),
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
        tool = line.split()[1]
        assert tool == '-m' or (ROOT / tool).is_file(), f'make {target} runs {tool}'
