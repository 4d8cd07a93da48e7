"""The table of docs/fault_injection.md, made of the records of rounds."""

import json

import campaign
import pytest

SAYS = 'A work directory that cannot be written to'
ROW = '| {} | {} | {} | {} | {} |'


@pytest.mark.parametrize(
    'done, of, failed, kept',
    [
        (3, 4, False, True),
        (4, 4, False, False),
        (3, None, False, True),  # a part that was not collected
        (8, None, False, False),
        (3, 4, True, False),
    ],
    ids=['some rounds', 'all rounds, fewer than before', 'some, of an unknown number', 'as many', 'a failure'],
)
def test_a_row_of_more_rounds_is_replaced_by_all_rounds_or_a_failure(tmp_path, done, of, failed, kept):
    page, records = tmp_path / 'page.md', tmp_path / 'records.jsonl'
    old, other = ROW.format(SAYS, 8, 8, 0.2, '2026-11-21'), ROW.format('Another part', 2, 2, 1.5, '2026-11-20')
    head = ['Text.', campaign.START, '', *campaign.TITLE, '| **Disks** | | | | |']
    page.write_text('\n'.join([*head, old, other, '', campaign.END, 'More.']))
    given = dict(part='test_disks::test_read_only', seed=0, day='2026-11-29', seconds=6.0, says=SAYS)
    outcomes = ['failed' if failed and not number else 'passed' for number in range(done)]
    lines = [dict(given, round=number, outcome=one) for number, one in enumerate(outcomes)]
    records.write_text(''.join(json.dumps(one) + '\n' for one in lines))
    campaign.write(records, page, {SAYS: of} if of else {})
    new = ROW.format(SAYS, done, outcomes.count('passed'), done * 6 / 60, '2026-11-29')
    assert page.read_text().split('\n') == [*head, old if kept else new, other, '', campaign.END, 'More.']
