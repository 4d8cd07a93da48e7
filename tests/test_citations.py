"""Tables, equations and sections that the project names, against one list of what they are (data/citations.yml)."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from benchmarks.zoo import published_models

ROOT = Path(__file__).parent.parent
PAPERS = yaml.safe_load((Path(__file__).parent / 'data/citations.yml').read_text())
PUBLISHED = published_models(ROOT / 'model-index.yml')
PLACE = r'(?:Table|Eq\.|Alg\.|Sec\.|App\.|Fig\.|Prop\.) [A-Z0-9][.0-9]*(?<!\.)'
CITATION = re.compile(rf'({"|".join(map(re.escape, PAPERS))}), ({PLACE})(?: and ({PLACE}))?')
SCORES = {'top-1': 'Top 1 Accuracy', 'box AP': 'box AP', 'mask AP': 'mask AP', 'mIoU': 'mIoU'}


def files(*patterns):
    return [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def relative(path):
    return str(path.relative_to(ROOT))


def text(path):
    return ' '.join(path.read_text().replace('#', ' ').split())


def cited(passage):
    return [(match[1], place) for match in CITATION.finditer(passage) for place in (match[2], match[3]) if place]


@pytest.mark.parametrize(
    'path', files('configs/*.py', 'configs/*/*', 'mmsoft/**/*.py', 'tests/data/recipes.yml'), ids=relative
)
def test_every_place_is_one_of_a_paper_and_known(path):
    passage = text(path)
    known = cited(passage)
    assert [place for _, place in known] == re.findall(PLACE, passage), 'a place without its paper'
    assert not [(paper, place) for paper, place in known if place not in PAPERS[paper]]


@pytest.mark.parametrize('path', files('docs/*.md', 'README.md'), ids=relative)
def test_places_in_the_documentation_are_known(path):
    assert not [(paper, place) for paper, place in cited(text(path)) if place not in PAPERS[paper]]


@pytest.mark.parametrize('name', [name for name, model in PUBLISHED.items() if model['Scores']])
def test_a_config_names_the_table_and_the_score_of_its_metafile(name):
    docstring, model = text(ROOT / f'configs/{name}.py').split('"""')[1], PUBLISHED[name]
    ((paper, place),) = cited(docstring)
    assert f'arXiv {paper}, {place}' == model['Printed In']
    _, configs = PAPERS[paper][place]
    assert any(fnmatch(name, pattern) for pattern in configs.split())
    scores = {SCORES[key]: float(value) for key, value in re.findall(rf'({"|".join(SCORES)}) ([\d.]+\d)', docstring)}
    assert scores and scores.items() <= model['Scores'].items()
