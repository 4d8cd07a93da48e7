"""Runs a tutorial and writes it as a page with its figures: notebook.py NOTEBOOK.ipynb PAGE.md

The site (docs/generate/hooks.py) takes the pages from there. Notebooks in the repository have no outputs.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

TIMEOUT = 1800  # seconds for one cell on a busy machine; on two idle cores a notebook takes less than five minutes


def main(notebook: Path, page: Path) -> None:
    content = nbformat.read(notebook, as_version=4)
    NotebookClient(content, timeout=TIMEOUT, resources=dict(metadata=dict(path=notebook.parent))).execute()
    for cell in content.cells:  # libraries' warnings are no part of a tutorial
        if cell.cell_type == 'code':
            cell.outputs = [output for output in cell.outputs if output.get('name') != 'stderr']
    text, resources = MarkdownExporter().from_notebook_node(content)
    page.parent.mkdir(parents=True, exist_ok=True)
    for name, figure in resources['outputs'].items():
        text = text.replace(f'({name})', f'({page.stem}_{name})')
        (page.parent / f'{page.stem}_{name}').write_bytes(figure)
    page.write_text(text)


if __name__ == '__main__':
    main(*map(Path, sys.argv[1:]))
