"""What mim needs beyond pyproject.toml: configs, tools and the model index in ``mmsoft/.mim``.

They are links in an editable install and copies in a wheel.
"""

import os
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.dist_info import dist_info

ROOT = Path(__file__).resolve().parent
RESOURCES = ('configs', 'tools', 'model-index.yml')


class BuildPy(build_py):
    """Fills ``.mim`` whenever the package is built."""

    def run(self):
        package = ROOT / 'mmsoft' if self.editable_mode else Path(self.build_lib, 'mmsoft')
        if not self.editable_mode:
            shutil.rmtree(package, ignore_errors=True)  # an earlier build may hold modules that no longer exist
        super().run()
        mim = package / '.mim'
        shutil.rmtree(mim, ignore_errors=True)
        mim.mkdir(parents=True)
        for name in RESOURCES:
            if self.editable_mode:
                (mim / name).symlink_to(os.path.relpath(ROOT / name, mim))
            elif (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, mim / name, ignore=shutil.ignore_patterns('__pycache__', '*.py[co]'))
            else:
                shutil.copy2(ROOT / name, mim / name)


class DistInfo(dist_info):
    """Tells mim where an editable package is: in the folder that the first line of ``top_level.txt`` names."""

    def run(self):
        super().run()
        if 'editable_wheel' in self.distribution.commands:
            Path(self.dist_info_dir, 'top_level.txt').write_text(f'{ROOT / "mmsoft"}\n')


setup(cmdclass=dict(build_py=BuildPy, dist_info=DistInfo))
