"""The command of a project makes its data once, runs what is named with all seeds and publishes the scores."""

import json
import sys
from importlib import import_module

import pytest

from mmsoft.utils import UsageError
from projects.runs import Data, command, kept, spread


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command of a project whose scores are twice the seed; returns its exit code and what it prints."""
    data = Data('--source', 'a file', tmp_path / 'made', lambda source: (tmp_path / 'made').write_text(source))

    def with_arguments(*arguments):
        monkeypatch.setattr(sys, 'argv', ['project', *arguments])
        options = dict(default=['one'], seeds=[3], data=data)
        code = command(tmp_path, 'Tests.', ['one', 'two'], lambda name, seed: 2 * seed, str, **options)
        return code, capsys.readouterr().out.strip()

    return with_arguments


def test_data_is_asked_for_once(run, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run()
    assert '--source is needed the first time: a file' in capsys.readouterr().err
    assert run('--source', 'here') == (0, "{'one': [6]}") and (tmp_path / 'made').read_text() == 'here'
    assert run('--source', 'elsewhere')[0] == 0 and (tmp_path / 'made').read_text() == 'here'


def test_names_and_seeds_are_run_and_published(run, tmp_path, capsys):
    (tmp_path / 'made').touch()
    page = 'Before.\n<!-- results -->\n{}\n<!-- end -->\nBehind.\n<!-- end -->\n'
    (tmp_path / 'README.md').write_text(page.format('old\ntable'))
    assert run('two', 'one', '--seeds', '1', '2', '--publish') == (0, "{'two': [2, 4], 'one': [2, 4]}")
    assert json.loads((tmp_path / 'results.json').read_text()) == dict(two=[2, 4], one=[2, 4])
    assert (tmp_path / 'README.md').read_text() == page.format(dict(two=[2, 4], one=[2, 4]))
    (tmp_path / 'results.json').write_text(json.dumps(dict(gone=[0], one=[2, 4], two=[2, 4])))
    run('one', '--publish')
    assert json.loads((tmp_path / 'results.json').read_text()) == dict(one=[6], two=[2, 4])
    with pytest.raises(SystemExit):
        run('three')
    assert 'choose from one, two' in capsys.readouterr().err


@pytest.mark.parametrize('name', ['dino', 'long_range_arena', 'trees'])
def test_the_page_has_the_table_of_the_results(name):
    project = import_module(f'projects.{name}.__main__')
    scores = json.loads((project.HERE / 'results.json').read_text())
    assert set(scores) == set(project.ATTENTIONS if name == 'long_range_arena' else project.NAMES)
    page = (project.HERE / 'README.md').read_text()
    assert f'<!-- results -->\n{project.table(scores)}\n<!-- end -->' in page


def test_a_score_is_computed_once_and_is_of_its_settings(tmp_path):
    config, file = tmp_path / 'config.py', tmp_path / 'work/score.json'
    config.write_text("default_scope = 'mmdet'\nlr = 1")
    assert kept(file, str(config), dict(seed=2), lambda: {'x': 1.5}) == {'x': 1.5}
    assert kept(file, str(config), dict(seed=2), None) == {'x': 1.5}
    with pytest.raises(UsageError, match='work has a training with other settings'):
        kept(file, str(config), dict(seed=3), None)
    file.unlink()
    config.write_text("default_scope = 'mmdet'\nlr = 2")
    with pytest.raises(UsageError, match='other settings'):  # from whose checkpoint it would go on
        kept(file, str(config), dict(seed=2), dict)


def test_spread_is_that_of_a_sample():
    assert spread([1.0], 2) == '1.00' and spread([1.0, 3.0], 1) == '2.0 ± 1.4'
