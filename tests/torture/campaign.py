"""The records of the campaign, and the table in docs/reliability.md that is made of them."""
import json
import re

HEADINGS = dict(
    test_killed='Killed', test_disks='Disks', test_files='Files', test_pictures='Pictures',
    test_annotations='Configs and annotations', test_long='Long runs', test_numbers='Numbers', test_sharing='Sharing')
START, END = '<!-- campaign: written by make torture -->', '<!-- /campaign -->'


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


def rows(records):
    """A row for each part, under a row for each file."""
    parts = {}
    for record in records:
        parts.setdefault(record['part'], []).append(record)
    for stem in sorted({part.split('::')[0] for part in parts}, key=list(HEADINGS).index):
        yield f'| **{HEADINGS[stem]}** | | | |'
        for part, rounds in parts.items():
            if part.split('::')[0] != stem:
                continue
            held = sum(record['outcome'] == 'passed' for record in rounds)
            minutes = sum(record['seconds'] for record in rounds) / 60
            yield f'| {rounds[-1]["says"]} | {len(rounds)} | {held} | {minutes:.1f} |'


def write(records, page):
    """Replaces the table between the page's two marks."""
    lines = [START, '', '| what was done | rounds | held | minutes |', '| --- | ---: | ---: | ---: |',
             *rows(read(records)), '', END]
    old = page.read_text()
    page.write_text(re.sub(f'{START}.*?{END}', lambda _: '\n'.join(lines), old, flags=re.S))
