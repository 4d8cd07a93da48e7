"""The campaign against everything that goes wrong: a test that asks for a ``trial`` is a part of it, run in rounds.

    @pytest.mark.rounds(2, 30)
    def test_something_terrible(trial):
        '''What is done, as it stands in docs/fault_injection.md.'''
        where = trial.random.integers(100)
        trial.note(where=int(where))

``make test-all`` runs 2 rounds of this one (0 leaves it out) and ``make torture`` 30. Of these, finished ones are kept in
``work_dirs/torture/records.jsonl`` and not repeated. ``--publish`` makes the page's table of them.
"""

import json
import re
import time
import zlib
from pathlib import Path

import campaign
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / 'work_dirs/torture/records.jsonl'
ROUNDS = {}  # how many today's campaign has of each part, by what the part says
START = time.time()


class Trial:
    """One round.

    Attributes:
        round (int): Its number, from 0.
        random (np.random.Generator): Decides what happens in it, the same whenever it is repeated.
    """

    def __init__(self, part, round, seed):
        self.round = round
        self.random = np.random.default_rng([seed, zlib.crc32(part.encode()), round])
        self.facts = {}

    def note(self, **facts):
        """Keeps what happened, in JSON's types, for the record."""
        self.facts.update(facts)


def pytest_addoption(parser):
    group = parser.getgroup('torture')
    group.addoption('--full', action='store_true', help='all rounds of the campaign, recorded; done ones are left out')
    group.addoption('--rounds', type=int, help='so many rounds of each part')
    group.addoption('--torture-seed', type=int, default=0, help='another number: other accidents (default: 0)')
    group.addoption(
        '--publish', action='store_true', help='write the table of docs/fault_injection.md from all records'
    )
    group.addoption('--minutes', type=float, help='start no further round after so long')


def option(config, name, default=None):
    return config.getoption(name, default)  # they are unknown where pytest was not called for this folder


def pytest_configure(config):
    config.addinivalue_line('markers', 'rounds(short, full): how often make test-all and make torture run it')


def rounds_of(item):
    """How many rounds make test-all and make torture have of a part."""
    marker = item.get_closest_marker('rounds')
    return marker.args if marker else (1, 1)


def pytest_generate_tests(metafunc):
    if 'trial' in metafunc.fixturenames:
        short, full = rounds_of(metafunc.definition)
        chosen = option(metafunc.config, 'rounds')
        count = chosen if chosen is not None else full if option(metafunc.config, 'full') else short
        metafunc.parametrize('trial', range(count), indirect=True, ids=lambda number: f'round{number}')


def part_of(item):
    """The name of a part: the test's, without the number of the round."""
    name = re.sub(r'-?\bround\d+\b-?', '', item.name).replace('[]', '')
    return f'{item.path.stem}::{name}'


def says_of(item):
    """What a part says of itself in the table."""
    says = (item.function.__doc__ or part_of(item)).strip().splitlines()[0].rstrip('.')
    ids = re.search(r'\[(.*)\]$', part_of(item))
    return f'{says} ({ids[1]})' if ids else says


def key_of(item):
    seed = option(item.config, 'torture_seed', 0)
    return part_of(item), item.callspec.params['trial'], seed


@pytest.fixture
def trial(request):
    minutes = option(request.config, 'minutes')
    if minutes and time.time() > START + 60 * minutes:
        pytest.skip(f'{minutes} minutes are over')
    request.node.trial = Trial(*key_of(request.node))
    return request.node.trial


def pytest_collection_modifyitems(config, items):
    ROUNDS.update({says_of(item): rounds_of(item)[1] for item in items if 'trial' in getattr(item, 'fixturenames', ())})
    if option(config, 'full'):
        done = {
            (one['part'], one['round'], one['seed']) for one in campaign.read(RECORDS) if one['outcome'] == 'passed'
        }
        left = [item for item in items if 'trial' not in getattr(item, 'fixturenames', ()) or key_of(item) not in done]
        config.hook.pytest_deselected(items=[item for item in items if item not in left])
        items[:] = left


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if call.when != 'call' or report.skipped or not hasattr(item, 'trial') or not option(item.config, 'full'):
        return
    part, number, seed = key_of(item)
    record = dict(
        part=part,
        round=number,
        seed=seed,
        day=time.strftime('%Y-%m-%d', time.gmtime()),
        outcome=report.outcome,
        seconds=round(report.duration, 1),
        says=says_of(item),
        facts=item.trial.facts,
    )
    if report.failed:
        record['error'] = str(call.excinfo.value)[-2000:]
    RECORDS.parent.mkdir(parents=True, exist_ok=True)
    with RECORDS.open('a') as file:
        file.write(json.dumps(record) + '\n')


def pytest_sessionfinish(session):
    if option(session.config, 'publish') and RECORDS.exists():
        campaign.write(RECORDS, ROOT / 'docs/fault_injection.md', ROUNDS)


@pytest.fixture
def full(request):
    """Whether this is the whole campaign."""
    return bool(option(request.config, 'full'))
