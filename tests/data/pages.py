"""The pages of the repository: its README, the site's, and those of the folders."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *sorted((ROOT / 'docs').glob('*.md'))]
READMES = [*sorted(ROOT.glob('projects/*/*.md')), ROOT / 'benchmarks/README.md', ROOT / 'configs/README.md']
