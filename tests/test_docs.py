"""Checks that the pages are right: their examples run, their configs train as they say, their links lead somewhere."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from pages import PAGES, READMES, ROOT
from torch import nn

import mmsoft
import mmsoft.attention
from mmsoft.backbones import SOFT, SimACvT, SimADeiT, SimAXCiT
from mmsoft.registry import HOOKS, MODELS

DESIGN = (ROOT / 'docs/design.md').read_text()
CLI = runpy.run_path(str(ROOT / 'docs/generate/cli.py'))
TUTORIALS = sorted((ROOT / 'docs/tutorials').glob('*.ipynb'))


def called(page):
    return page.parent.name if page in READMES else page.stem


def blocks(language):
    """(page, number, needs, code) of the code blocks; the comment in front of a block says what it needs to run."""
    for page in PAGES + READMES:
        pattern = rf'(?:<!-- needs: ([^\n]*) -->\n)?```{language}\n(.*?)```'
        for number, (needs, code) in enumerate(re.findall(pattern, page.read_text(), re.S)):
            yield page, number, needs, code


def test_every_block_is_of_a_kind_that_is_tested():
    """Code in another language, fence or place would escape; text and bibtex are no code, the Dockerfile is built nowhere."""
    for page in PAGES + READMES:
        lines = page.read_text().splitlines()
        fences = [line for line in lines if re.match(r'\s*(```|~~~)', line)]
        assert set(fences[1::2]) <= {'```'}, page
        assert set(fences[::2]) <= {'```shell', '```python', '```text', '```bibtex', '```dockerfile'}, page
        indented = [line for line in lines if re.match(r' {4,}(python|pip|make|mim|import|from) ', line)]
        assert '```python' in fences or '```dockerfile' in fences or not indented, page


# What examples lead to whose libraries only some stacks have.
RESULTS = dict(
    transformers='[tuple(m.shape[1:]) for m in maps] == [(128, 8, 8), (320, 4, 4), (512, 2, 2)]',
    segmentation_models_pytorch='scores.shape == (1, 3, 64, 64)',
)


def programs():
    """Python blocks that are programs; other blocks are configs or parts of them."""
    for page, number, needs, code in blocks('python'):
        if re.search(r'^(?:import|from) ', code, re.M) and not needs:
            other = re.search(rf'^(?:import|from) ({"|".join(RESULTS)})', code, re.M)  # in a process of its own
            yield pytest.param(code, id=f'{called(page)}-{number}', marks=[pytest.mark.slow] * bool(other))


@pytest.mark.parametrize('code', list(programs()))
def test_programs_run(code):
    if 'timm' in code:
        pytest.importorskip('timm')
    other = re.search(rf'^(?:import|from) ({"|".join(RESULTS)})', code, re.M)
    if other:
        folders = [str(ROOT), str(Path(sys.prefix, 'examples'))]
        installed = (
            f'from importlib.util import find_spec as find\nif not find("{other[1]}"): raise SystemExit("skip")\n'
        )
        run = subprocess.run(
            [sys.executable, '-c', f'{installed}{code}\nassert {RESULTS[other[1]]}'],
            text=True,
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(folders)),
            stderr=subprocess.PIPE,
        )
        if run.stderr.strip() == 'skip':
            pytest.skip(f'{other[1]} is not installed; tools/setup_env.sh does so')
        assert run.returncode == 0, run.stderr
    else:
        before = set(MODELS.module_dict)
        try:
            exec(code, {})
        finally:
            for name in set(MODELS.module_dict) - before:
                MODELS.module_dict.pop(name)


def parts():
    """Python blocks that are lines of a config."""
    for page, number, needs, code in blocks('python'):
        if not needs and not re.search(r'^(?:import|from|_base_ =) ?', code, re.M):
            yield pytest.param(code, id=f'{called(page)}-{number}')


@pytest.mark.parametrize('code', list(parts()))
def test_parts_of_configs_name_what_exists(code):
    settings = {'_base_': SimpleNamespace(custom_hooks=[])}
    exec(code, settings)
    types = [one['type'] for one in dicts({name: settings[name] for name in settings if not name.startswith('__')})]
    for kind in types:
        if kind.startswith('mmsoft.') or kind.endswith('Attention'):
            assert any(registry.get(kind.replace('mmsoft.', '')) for registry in (MODELS, HOOKS)), kind
    assert all(find_spec(name) for name in settings.get('custom_imports', {}).get('imports', ()))


def dicts(value):
    if isinstance(value, dict):
        yield from [value] * ('type' in value)
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from dicts(one)


@pytest.mark.parametrize('path', TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_are_on_the_site_and_have_no_outputs(path):
    """`make docs` runs them; what they print belongs to the site."""
    assert f'tutorials/{path.stem}.md' in (ROOT / 'mkdocs.yml').read_text()
    code = [cell for cell in json.loads(path.read_text())['cells'] if cell['cell_type'] == 'code']
    assert code and not any(cell['outputs'] or cell['execution_count'] for cell in code)
    for line in ''.join(f'{"".join(cell["source"])}\n' for cell in code).splitlines():
        if re.match(r'from (mmsoft|projects)', line):  # the rest is seen by `make docs` alone
            exec(line, {})
        for tool in re.findall(r'tools/\w+\.py|configs/[\w/]+\.py', line):
            assert (ROOT / tool).exists(), tool


# The highest learning rate of each config on a page, as the page states it.
SCHEDULES = dict(
    README=[1e-4],
    use_in_your_project=[1e-4, 1e-4, 6e-5, 1e-3, 5e-4, 1e-4],
    training=[1e-4, 6e-5],
    logging=[1e-4] * 3,
    own_data=[6e-5, 1e-4],
    reliability=[1e-4],
    pretrained_weights=[1e-4],
)


def configs():
    """(code, learning rate) of the config blocks."""
    codes = {}
    for page, _, _, code in blocks('python'):
        if code.startswith('_base_ = '):
            codes.setdefault(page.stem, []).append(code)
    assert {page: len(each) for page, each in codes.items()} == {page: len(each) for page, each in SCHEDULES.items()}
    for page, each in codes.items():
        for number, (code, rate) in enumerate(zip(each, SCHEDULES[page])):
            yield pytest.param(code, rate, id=f'{page}-{number}')


def load(code, folder):
    """A page's config, read where the repository's configs are in ``configs``, as in the repository's root."""
    (folder / 'configs').symlink_to(ROOT / 'configs')
    (folder / 'example.py').write_text(code)
    return Config.fromfile(folder / 'example.py')


class Toy(BaseModel):
    """A model of one parameter, because a schedule does not depend on the model."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, inputs, mode):
        return {}


def learning_rates(cfg, folder, iterations=100):
    """The learning rate of every iteration, in epochs of ``iterations``; schedules that count iterations are shortened."""
    by_iteration = cfg.train_cfg.get('by_epoch') is False or cfg.train_cfg.get('type') == 'IterBasedTrainLoop'
    train_cfg = dict(by_epoch=not by_iteration)
    schedulers = [dict(scheduler) for scheduler in cfg.param_scheduler]
    if by_iteration:
        train_cfg['max_iters'] = cfg.train_cfg.max_iters // 100
    else:
        train_cfg['max_epochs'] = cfg.train_cfg.max_epochs
    for scheduler in schedulers:
        if not scheduler.get('by_epoch', True):
            for key in ('begin', 'end'):
                if key in scheduler:
                    scheduler[key] //= 100 if by_iteration else 5
    runner = Runner(
        model=Toy(),
        work_dir=str(folder),
        train_cfg=train_cfg,
        log_level='ERROR',
        default_scope='mmengine',
        train_dataloader=torch.utils.data.DataLoader(range(iterations)),
        optim_wrapper=dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=cfg.optim_wrapper.optimizer.lr)),
    )
    runner._train_loop = runner.build_train_loop(train_cfg)
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    built = runner.build_param_scheduler(schedulers)
    rates = []
    for epoch in range(1 if by_iteration else train_cfg['max_epochs']):
        for _ in range(train_cfg.get('max_iters', iterations)):
            rates.append(runner.optim_wrapper.get_lr()['lr'][0])
            runner.optim_wrapper.optimizer.step()
            for scheduler in built:
                if not scheduler.by_epoch:
                    scheduler.step()
        for scheduler in built:
            if scheduler.by_epoch:
                scheduler.step()
    return rates


@pytest.mark.parametrize('code, rate', list(configs()))
def test_configs_train_as_the_page_says(code, rate, tmp_path):
    pytest.importorskip('mmdet')
    library = re.match(r"_base_ = '(\w+)::", code)
    if library and library[1] in ('mmpose', 'mmyolo') and not find_spec(library[1]):
        settings = {}
        exec(code, settings)
        backbone = MODELS.build({key: settings['model']['backbone'][key] for key in ('type', 'arch')})
        widest = settings['model'].get('head', settings['model'].get('neck'))['in_channels']
        assert backbone.out_channels[-1] == (widest if library[1] == 'mmpose' else widest[-1] / 2)
        assert settings['optim_wrapper']['optimizer']['lr'] == rate
        pytest.skip(f'the rest needs {library[1]}')
    cfg = load(code, tmp_path)
    rates = learning_rates(cfg, tmp_path)
    highest = max(rates)
    top = rates.index(highest)
    assert highest == pytest.approx(rate, rel=0.02)
    assert top < len(rates) / 10, 'a long warm-up'
    assert all(b <= a * (1 + 1e-6) for a, b in zip(rates[top:], rates[top + 1 :])), 'the rate rises after its warm-up'
    assert rates[-1] < highest / 10, 'the rate does not decay'
    if "'configs/" in code.splitlines()[0]:
        assert 'mmsoft.WholeCheckpointsHook' in [hook['type'] for hook in cfg.custom_hooks], "the base's hooks are lost"
    init_default_scope(cfg.get('default_scope', 'mmpretrain'))
    model = MODELS.build(cfg.model)
    assert type(model.backbone).__module__.startswith('mmsoft')


TARGETS = {
    target: (module, shlex.split(before))
    for target, module, before in re.findall(
        r'^(\w+): setup\n(?:\t@.*\n)?\t\$\(PY\) -m ((?:benchmarks|projects)\.\w+) (.*?)\$\(ARGS',
        (ROOT / 'Makefile').read_text(),
        re.M,
    )
}


def commands():
    """Lines of the shell blocks that call a tool of ours, and their arguments."""
    for page, _, _, code in blocks('shell'):
        for line in code.replace('\\\n', ' ').splitlines():
            words = shlex.split(line, comments=True)
            for number, word in enumerate(words):
                if re.fullmatch(r'(benchmarks|projects)\.\w+', word):
                    yield pytest.param(word, words[number + 1 :], id=f'{called(page)}: {" ".join(words[number:])[:60]}')
                elif word in TARGETS and words[number - 1] == 'make':
                    module, before = TARGETS[word]
                    arguments = shlex.split(' '.join(words[number + 1 :]).replace('ARGS=', ''))
                    name = f'{called(page)}: {" ".join(words[number:])[:60]}'
                    yield pytest.param(module, [*before, *arguments], id=name)
                elif re.fullmatch(r'tools/\w+\.py', word):
                    yield pytest.param(
                        ROOT / word, words[number + 1 :], id=f'{called(page)}: {" ".join(words[number:])[:60]}'
                    )
                elif word == 'tools/slurm_train.sh':
                    config, work_dir, *rest = words[number + 3 :]
                    name = f'{called(page)}: {" ".join(words)[:60]}'
                    yield pytest.param(ROOT / 'tools/train.py', [config, '--work-dir', work_dir, *rest], id=name)
                elif re.fullmatch(r'tools/dist_(train|test)\.sh', word):
                    extra = 2 if 'train' in word else 3
                    config, rest = words[number + 1], words[number + extra + 1 :]
                    tool = ROOT / word.replace('dist_', '').replace('.sh', '.py')
                    yield pytest.param(
                        tool,
                        [config, *words[number + 2 : number + extra], *rest],
                        id=f'{called(page)}: {" ".join(words[number:])[:60]}',
                    )


@pytest.mark.parametrize('tool, arguments', list(commands()))
def test_commands_have_arguments_that_their_tools_take(tool, arguments):
    CLI['parser_of'](tool, arguments)
    for argument in arguments:
        if re.fullmatch(r'(configs|projects)/.*\.py', argument):
            assert (ROOT / argument).exists(), argument


def test_shell_blocks_run_or_say_what_they_need():
    targets = set(re.findall(r'^([a-z-]+):', (ROOT / 'Makefile').read_text(), re.M))
    for page, _, needs, code in blocks('shell'):
        assert set(re.findall(r'^make ([\w-]+)', code, re.M)) <= targets, page.name
        if re.search(r'tools/\S+ projects/', code):
            assert 'PYTHONPATH=.' in code, f'{page.name}: configs of projects/ import it'
        if not needs:
            subprocess.run(
                ['bash', '-euc', code],
                cwd=ROOT,
                check=True,
                env=dict(os.environ, PYTHONPATH=str(ROOT), PATH=f'{Path(sys.executable).parent}:{os.environ["PATH"]}'),
            )


def test_the_command_line_page_is_that_of_the_parsers():
    assert CLI['PAGE'].read_text() == CLI['page'](), 'run: python docs/generate/cli.py'


def test_the_results_of_the_readme_are_those_of_the_zoo_and_the_benchmark():
    readme = runpy.run_path(str(ROOT / 'docs/generate/readme.py'))
    assert readme['page']() == (ROOT / 'README.md').read_text(), 'run: python -m docs.generate.readme'


def test_every_folder_is_explained():
    package = Path(mmsoft.__file__).parent
    folders = {path.name for path in package.iterdir() if (path / '__init__.py').exists()}
    table = DESIGN[DESIGN.index('| `mmsoft/`') : DESIGN.index('`configs/_base_/`')]
    assert folders == set(re.findall(r'`(\w+)/`', table)) - {'mmsoft'}
    for row in table.splitlines():
        named = re.findall(r'`(\w+)/`', row)[:1]
        assert all((package / named[0] / file).exists() for file in re.findall(r'`(\w+\.py)`', row)), row


def test_every_attention_is_named():
    public = {name for name in mmsoft.attention.__all__ if name.endswith('Attention')}
    protocol = {'SimAClassAttention', 'MultiheadAttention', 'Attention'}
    assert public - protocol <= set(re.findall(r'\w+Attention', DESIGN))


def test_the_new_attention_works_in_every_backbone():
    code = re.search(r'## A new attention.*?```python\n(.*?)```', DESIGN, re.S).group(1)
    try:
        exec(code, {})
        for backbone, arch in ((SOFT, 'tiny'), (SimADeiT, 'small'), (SimAXCiT, 'tiny-12-p16'), (SimACvT, '13')):
            modules = backbone(arch, attention=dict(type='MeanAttention')).modules()
            assert any(type(module).__name__ == 'MeanAttention' for module in modules)
    finally:
        MODELS.module_dict.pop('MeanAttention', None)


def anchors(page):
    """Of a page's headings, as the site and GitHub name them."""
    headings = re.findall(r'^#+ (.*)', re.sub(r'```.*?```', '', page.read_text(), flags=re.S), re.M)
    texts = (re.sub(r'[^\w\s-]', '', heading.replace('`', '')).strip().lower() for heading in headings)
    return {re.sub(r'[-\s]+', '-', text) for text in texts}


def test_links_lead_somewhere():
    for page in (*PAGES, *READMES, ROOT / 'CHANGELOG.md'):
        for target, anchor in re.findall(r'\]\(([^)#\s]*)(?:#([^)\s]+))?', page.read_text()):
            file = page.parent / target if target else page
            assert '://' in target or file.exists(), f'{page.name}: {target}'
            assert not anchor or file.suffix != '.md' or anchor in anchors(file), f'{page.name}: {target}#{anchor}'


def test_lists_go_on_after_a_paragraph():
    """On the site, an item right behind a paragraph of the item before it would be text of that paragraph."""
    for page in (*PAGES, *READMES, ROOT / 'CHANGELOG.md'):
        text = re.sub(r'```.*?```', '', page.read_text(), flags=re.S)
        joined = re.findall(r'\n\n {4}\S.*(?:\n {4}.+)*\n((?:\d+\.|[*-]) .{,40})', text)
        assert not joined, f'{page.name}: empty line missing before {joined}'
