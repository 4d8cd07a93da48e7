"""The records of the campaign, and the table in docs/fault_injection.md that is made of them."""

import json
import re

HEADINGS = dict(
    test_killed='Killed',
    test_disks='Disks',
    test_files='Files',
    test_pictures='Images',
    test_annotations='Configs and annotations',
    test_long='Long runs',
    test_numbers='Numbers',
    test_sharing='Sharing',
)
START, END = '<!-- campaign: written by make torture -->', '<!-- /campaign -->'
TITLE = ('| what was done | rounds | held | minutes | last on |', '| --- | ---: | ---: | ---: | --- |')


def read(records):
    """All rounds that were ever recorded, of each the last result; a line that was cut off is left out."""
    found = {}
    for line in records.read_text().splitlines() if records.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        found[record['part'], record['round'], record['seed']] = record
    return list(found.values())


def summed(records):
    """Of each heading the parts by what they say, and of each part its rounds, how many held, minutes and last day."""
    parts = {}
    for record in records:
        parts.setdefault(HEADINGS[record['part'].split('::')[0]], {}).setdefault(record['says'], []).append(record)
    return {
        heading: {
            says: (
                len(rounds),
                sum(record['outcome'] == 'passed' for record in rounds),
                round(sum(record['seconds'] for record in rounds) / 60, 1),
                max(record.get('day', '') for record in rounds),
            )
            for says, rounds in found.items()
        }
        for heading, found in parts.items()
    }


def written(text):
    """The same of a table that was written before."""
    parts, heading = {}, None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if cells[0].startswith('**'):
            heading = parts.setdefault(cells[0].strip('*'), {})
        elif heading is not None and len(cells) == 5:
            heading[cells[0]] = int(cells[1]), int(cells[2]), float(cells[3]), cells[4]
    return parts


def write(records, page, rounds):
    """Replaces the table between the page's two marks; ``rounds`` has how many today's campaign has of each part.

    A row of more rounds stays, unless as many as today's campaign has are recorded, or one of them has failed.
    """
    text = page.read_text()
    old, new = written(text[text.index(START) : text.index(END)]), summed(read(records))
    lines = [START, '', *TITLE]
    for heading in HEADINGS.values():
        found = {**old.get(heading, {})}
        found.update(
            (says, row)
            for says, row in new.get(heading, {}).items()
            if row[0] >= min(found.get(says, row)[0], rounds.get(says, row[0] + 1)) or row[1] < row[0]
        )
        lines += [f'| **{heading}** | | | | |'] * bool(found)
        lines += [f'| {says} | {" | ".join(map(str, row))} |' for says, row in found.items()]
    page.write_text(re.sub(f'{START}.*?{END}', lambda _: '\n'.join([*lines, '', END]), text, flags=re.S))
