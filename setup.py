"""Packaging of mmsoft.

mim looks for configs, tools and the model index in ``mmsoft/.mim``: links to them in an editable install, copies in a
wheel. A source distribution carries the originals, from which its wheel makes the copies.
"""
import os
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.develop import develop
from setuptools.command.dist_info import dist_info

ROOT = Path(__file__).resolve().parent
MIM_RESOURCES = ('configs', 'tools', 'model-index.yml')


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding='utf-8')


def requirements(name: str) -> list:
    lines = (line.split('#')[0].strip() for line in read(f'requirements/{name}.txt').splitlines())
    return [line for line in lines if line]


def version() -> str:
    scope = {}
    exec(read('mmsoft/version.py'), scope)
    return scope['__version__']


def place(source: Path, target: Path, link: bool) -> None:
    if link:
        try:
            return target.symlink_to(os.path.relpath(source, target.parent), target_is_directory=source.is_dir())
        except OSError:  # the system grants no links, as Windows does by default
            pass
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns('__pycache__', '*.py[co]'))
    else:
        shutil.copy2(source, target)


def fill_mim(package: Path, link: bool) -> None:
    """Makes ``package/.mim`` anew, of links to the resources or of copies."""
    mim = package.resolve() / '.mim'
    if mim.is_symlink():
        mim.unlink()
    shutil.rmtree(mim, ignore_errors=True)
    mim.mkdir(parents=True)
    for name in MIM_RESOURCES:
        place(ROOT / name, mim / name, link)


class BuildPy(build_py):
    """Builds the contents of wheels, the editable ones of PEP 660 included."""

    def run(self):
        editable = getattr(self, 'editable_mode', False)
        package = ROOT / 'mmsoft' if editable else Path(self.build_lib, 'mmsoft')
        if not editable:
            shutil.rmtree(package, ignore_errors=True)  # an earlier build may hold modules that are gone by now
        super().run()
        fill_mim(package, link=editable)


class DistInfo(dist_info):
    """Tells mim where an editable wheel's package is.

    mim looks beside the metadata for the folder named in the first line of ``top_level.txt``. The package of an
    editable wheel is elsewhere, and an absolute path leads there.
    """

    def run(self):
        super().run()
        if 'editable_wheel' in self.distribution.commands:
            Path(self.dist_info_dir, 'top_level.txt').write_text(f'{ROOT / "mmsoft"}\n')


class Develop(develop):
    """Editable installs by ``setup.py develop``, which pip uses where setup.py is all there is."""

    def run(self):
        fill_mim(ROOT / 'mmsoft', link=True)
        super().run()


setup(
    name='mmsoft',
    version=version(),
    description='Softmax-free transformers (SOFT, SOFT-Norm, SimA) for dense prediction, as an OpenMMLab plugin',
    long_description=read('README.md'),
    long_description_content_type='text/markdown',
    author='mmsoft authors',
    license='Apache-2.0',
    keywords='computer vision, object detection, semantic segmentation, transformer, linear attention',
    classifiers=[
        'Development Status :: 4 - Beta',
        'Intended Audience :: Science/Research',
        'Operating System :: OS Independent',
        'Programming Language :: Python :: 3',
        'Programming Language :: Python :: 3.8',
        'Programming Language :: Python :: 3.9',
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
    ],
    python_requires='>=3.8',
    packages=find_packages(include=['mmsoft', 'mmsoft.*']),
    install_requires=requirements('runtime'),
    extras_require={
        'all': sum(map(requirements, ('runtime', 'tools', 'optional', 'tests')), []),
        'build': requirements('build'),
        'mim': requirements('mminstall'),
        'optional': requirements('optional'),
        'tests': requirements('tests'),
        'tools': requirements('tools'),
    },
    cmdclass=dict(build_py=BuildPy, develop=Develop, dist_info=DistInfo),
    zip_safe=False,
)
