"""Pages and code are in plain English."""

import re

from pages import PAGES, READMES, ROOT

# Words that the pages avoid, and what to write instead; see CONTRIBUTING.md, Style.
AVOIDED = {
    r'\bpictures?\b': 'image',
    r'\bbod(y|ies)\b': 'backbone, architecture',
    r"\b(the|our|a) hosts?\b|host's": 'OpenMMLab libraries',
    r'\bstrangers?\b': 'untrusted checkpoint',
    r'\bmend(s|ed)?\b': 'fix',
    r'\b(seen to pass|held to)\b': 'tested',
    r'\bdoors?\b': 'entry point',
    r'\bcompanions?\b': 'other images of the batch',
    r'\btaps\b': 'output indices',
    r'\blandmarks?\b': 'bottleneck tokens',
    r'\bone sentence\b': 'error message',
    r'\bthe shapes\b(?! of)': 'synthetic shapes data set',
    r'(?m)^\W*Who \w+ ': 'If you …',
    r'\b(drawn|made|compiled) anew\b': 'again',
    r'\b(explained|worth it) (is|are)\b': 'subject first',
}
QUOTED = {('papers', 'landmark'), ('evidence', 'landmark')}  # of Nyströmformer, and of the papers


def test_the_code_is_in_plain_english():
    folders = ('mmsoft', 'configs', 'tools', 'projects', 'benchmarks', 'docs/generate')
    found = [
        f'{path}: {match[0].strip()!r}, better: {better}'
        for folder in folders
        for path in sorted(ROOT.glob(f'{folder}/**/*.py'))
        for word, better in AVOIDED.items()
        for match in re.finditer(word, path.read_text(), re.I)
    ]
    assert not found


def test_pages_are_in_plain_english():
    found = []
    for page in (*PAGES, *READMES, ROOT / 'CHANGELOG.md'):
        text = re.sub(r'```.*?```|`[^`]*`|https?://\S+', '', page.read_text(), flags=re.S)
        found += [
            f'{page.name}: {match[0].strip()!r}, better: {better}'
            for word, better in AVOIDED.items()
            for match in re.finditer(word, text, re.I)
            if (page.stem, match[0].lower().rstrip('s')) not in QUOTED
        ]
    assert not found
