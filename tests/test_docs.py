"""What the pages say of the package is so."""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mmsoft
import mmsoft.attention
from mmsoft.backbones import SOFT, SimACvT, SimADeiT, SimAXCiT
from mmsoft.registry import MODELS

ROOT = Path(__file__).parent.parent
DESIGN = (ROOT / 'docs/design.md').read_text()


def test_every_folder_is_explained():
    package = Path(mmsoft.__file__).parent
    folders = {path.name for path in package.iterdir() if (path / '__init__.py').exists()}
    table = DESIGN[DESIGN.index('| `mmsoft/`'):DESIGN.index('`configs/_base_/`')]
    assert folders == set(re.findall(r'`(\w+)/`', table)) - {'mmsoft'}
    for row in table.splitlines():
        named = re.findall(r'`(\w+)/`', row)[:1]
        assert all((package / named[0] / file).exists() for file in re.findall(r'`(\w+\.py)`', row))


def test_every_attention_is_named():
    public = {name for name in mmsoft.attention.__all__ if name.endswith('Attention')}
    protocol = {'SimAClassAttention', 'MultiheadAttention', 'Attention'}
    assert public - protocol <= set(re.findall(r'\w+Attention', DESIGN))


def test_the_new_attention_works_as_written():
    code = re.search(r'## A new attention.*?```python\n(.*?)```', DESIGN, re.S).group(1)
    try:
        exec(code, {})
        for body in (SOFT, SimADeiT, SimAXCiT, SimACvT):
            assert any(type(module).__name__ == 'MeanAttention' for module in body(
                attention=dict(type='MeanAttention')).modules())
    finally:
        MODELS.module_dict.pop('MeanAttention', None)


# What examples with libraries that setup keeps apart lead to.
RESULTS = dict(
    transformers='[tuple(m.shape[1:]) for m in maps] == [(128, 8, 8), (320, 4, 4), (512, 2, 2)]',
    segmentation_models_pytorch='scores.shape == (1, 3, 64, 64)')


def python_blocks(page):
    """The programs of a page, each with the library of :data:`RESULTS` that it imports, if any."""
    for code in re.findall(r'```python\n(.*?)```', (ROOT / 'docs' / page).read_text(), re.S):
        if 'import' in code:
            other = re.search(fr'^(?:import|from) ({"|".join(RESULTS)})', code, re.M)
            yield pytest.param(code, other and other.group(1), id=code.split('\n\n')[0].splitlines()[-1])


@pytest.mark.parametrize('code, other', list(python_blocks('use_in_your_project.md')))
def test_examples_run(code, other):
    if 'timm' in code:
        pytest.importorskip('timm')
    if other:
        folders = [str(ROOT), str(Path(sys.prefix, 'examples'))]
        installed = f'from importlib.util import find_spec as find\nif not find("{other}"): raise SystemExit("skip")\n'
        run = subprocess.run([sys.executable, '-c', f'{installed}{code}\nassert {RESULTS[other]}'], text=True,
                             env=dict(os.environ, PYTHONPATH=os.pathsep.join(folders)), stderr=subprocess.PIPE)
        if run.stderr.strip() == 'skip':
            pytest.skip(f'{other} is not installed; tools/setup_env.sh does so')
        assert run.returncode == 0, run.stderr
    else:
        exec(code, {})


def test_links_lead_somewhere():
    for page in (ROOT / 'README.md', *(ROOT / 'docs').glob('*.md')):
        for target in re.findall(r'\]\(([^)#\s]+)', page.read_text()):
            assert '://' in target or (page.parent / target).exists(), f'{page.name}: {target}'
