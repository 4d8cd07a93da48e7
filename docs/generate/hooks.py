"""What mkdocs needs besides the pages in docs/: pages from the repository's root, links to its files, docstrings checked.

README.md, CONTRIBUTING.md, CHANGELOG.md and the projects' pages become pages, and so do the tutorials that have been
run. A link from a page to a file outside docs/, such as a config, leads to a copy of that file in the site.
"""

import logging
import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / 'work_dirs/tutorials/pages'
PAGES = {
    'README.md': 'index.md',
    'CONTRIBUTING.md': 'contributing.md',
    'CHANGELOG.md': 'changelog.md',
    'projects/trees/EXPERIMENTS.md': 'projects/trees_experiments.md',
    **{
        f'projects/{path.parent.name}/README.md': f'projects/{path.parent.name}.md'
        for path in ROOT.glob('projects/*/README.md')
    },
}
SHORT = re.compile(r'<(td|code)([^>]*)>(?=[^<]{1,14}</td>|-[^<]{1,24}</code>)')
LINK = re.compile(r'(\]\()([^)\s#:]+)')
TOOLS = ('launch.train', 'launch.test', 'prediction.predict', 'deployment.export', 'visualization.visualize')
ENGINE = ('loops', 'samples', 'checkpoints', 'attention_share', 'layer_decay')
API = dict(
    backbones=('Backbones and necks', 'mmsoft.backbones', 'mmsoft.necks'),
    attention=('Attention', 'mmsoft.attention'),
    layers=('Layers', *(f'mmsoft.layers.{file}' for file in ('blocks', 'embed', 'maps', 'xcit'))),
    ops=('Operators', 'mmsoft.ops'),
    engine=('Training and checkpoints', *(f'mmsoft.engine.{file}' for file in ENGINE), 'mmsoft.checkpoint'),
    apis=('Tools as functions', *(f'mmsoft.apis.{function}' for function in TOOLS)),
    datasets=('Data and errors', 'mmsoft.datasets.shapes', 'mmsoft.utils'),
    timm=('timm', 'mmsoft.timm'),
)
log = logging.getLogger('mkdocs.hooks.mmsoft')


def for_site(text: str, page: str, files: Files, config) -> str:
    """A page with its links to files outside docs/ replaced by links to copies in the site.

    Args:
        text: Markdown of the page.
        page: Path of its source in the repository.
        files: Of the site; gets the copies.
        config: Of mkdocs.
    """
    site_page = PAGES.get(page, relpath(page, 'docs'))

    def replace(match):
        target = normpath(join(dirname(page), match[2]))
        if target in PAGES:
            new = PAGES[target]
        elif target.startswith('docs/tutorials/') and not page.startswith('docs/tutorials/'):
            new = target[len('docs/') :].replace('.ipynb', '.md')
        elif target.startswith('docs/'):
            new = target[len('docs/') :]
        elif (ROOT / target).is_file():
            new = f'files/{target}' if '.' in Path(target).name else f'files/{target}.txt'
            if new not in files.src_uris:
                files.append(File.generated(config, new, abs_src_path=str(ROOT / target)))
        else:
            return match[0]
        return match[1] + relpath(new, dirname(site_page) or '.')

    return LINK.sub(replace, text)


def on_files(files: Files, config) -> Files:
    for source, page in PAGES.items():
        text = for_site((ROOT / source).read_text(), source, files, config)
        files.append(File.generated(config, page, content=text))
        if source == 'README.md':
            citing = text[text.index('## Citation') : text.index('License:')].replace('## Citation', '# Citing')
            files.append(File.generated(config, 'citing.md', content=citing))
    for path in sorted(TUTORIALS.glob('*')):  # as docs/generate/notebook.py left them
        page = f'tutorials/{path.name}'
        if path.suffix == '.md':
            text = f'{path.read_text()}\n[This page as a notebook]({path.stem}.ipynb)\n'
            files.append(File.generated(config, page, content=for_site(text, f'docs/{page}', files, config)))
        else:
            files.append(File.generated(config, page, abs_src_path=str(path)))
    for name, (title, *modules) in API.items():
        text = f'# {title}\n' + ''.join(f'\n::: {module}\n' for module in modules)
        files.append(File.generated(config, f'api/{name}.md', content=text))
    for path in (ROOT / 'docs').glob('*.md'):
        for_site(path.read_text(), f'docs/{path.name}', files, config)
    return files


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    source = f'docs/{page.file.src_uri}'
    return for_site(markdown, source, files, config) if (ROOT / source).is_file() else markdown


def on_page_content(html: str, **_) -> str:
    """Marks short cells of tables, and options of commands, which docs/extra.css keeps on one line."""
    return SHORT.sub(r'<\1 class="short"\2>', html)


def on_pre_build(config) -> None:
    """Warns, which is an error in strict mode, of every public name without a docstring."""
    package = griffe.load('mmsoft', search_paths=[str(ROOT)], resolve_aliases=True)
    for name in sorted(undocumented(package)):
        log.warning('%s has no docstring', name)


def undocumented(module):
    listed = {one for _, *modules in API.values() for one in modules}
    members = module.members.items() if module.path in listed else ()
    own = [name for name, member in members if not (member.is_alias or name.startswith('_'))]
    for name in module.exports or own:
        member = module.members.get(str(name))
        if member is None:
            continue
        try:
            target = member.final_target if member.is_alias else member
        except griffe.AliasResolutionError:
            continue
        if target.is_module or target.is_attribute:
            continue
        if not target.has_docstring:
            yield target.path
        if target.is_class:
            yield from (
                f'{target.path}.{method.name}'
                for method in target.functions.values()
                if not method.name.startswith('_')
                and not method.has_docstring
                and not inherited_docstring(target, method.name)
            )
    for submodule in module.modules.values():
        if not submodule.is_alias:
            yield from undocumented(submodule)


def inherited_docstring(cls, name: str) -> bool:
    """Whether a base class inside or outside the package documents this method; forward is PyTorch's."""
    if name in ('forward', 'init_weights', 'train', 'extra_repr'):
        return True
    return any(name in base.members and base.members[name].has_docstring for base in cls.mro() if not base.is_alias)
