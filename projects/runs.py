"""What the commands of the projects share: the options, scores that are kept, and their means over seeds."""

import argparse
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Callable, NamedTuple, Optional

from benchmarks.common import fill_page
from mmsoft.utils import UsageError
from mmsoft.utils.cli import command_line
from mmsoft.utils.config import load_config
from mmsoft.utils.files import atomic_write


class Data(NamedTuple):
    """Data that a project makes of files of another package, the first time.

    Attributes:
        option: Name of the command's option that says where these files are.
        what: What these files are, for messages.
        made: A file that exists if the data has been made.
        make: Makes it, from the option's value.
    """

    option: str
    what: str
    made: Path
    make: Callable[[str], Any]


def command(
    folder: Path,
    description: Optional[str],
    names: Sequence[str],
    run: Callable[[str, int], Any],
    table: Callable[[dict[str, list]], str],
    default: Optional[Sequence[str]] = None,
    seeds: Sequence[int] = (0,),
    data: Optional[Data] = None,
) -> int:
    """The command line of a project: runs what is named with all seeds, and prints the table of the scores.

    Args:
        folder: The project's, where ``--publish`` writes results.json and, if README.md has a place for it, the table.
        description: What the command does.
        names: Of what can be run.
        run: Returns the scores of a name and a seed.
        table: Makes Markdown of the scores of all seeds by name.
        default: Names to run if none is given; all by default.
        seeds: Seeds if none is given.
        data: What is needed the first time.

    Returns:
        The exit code.
    """

    def main() -> None:
        parser = argparse.ArgumentParser(prog=f'python -m projects.{folder.name}', description=description)
        add = parser.add_argument
        add('names', nargs='*', metavar='NAME', help=f'of {", ".join(names)} (default: {" ".join(default or ["all"])})')
        seeds_help = f'seeds of the trainings of each (default: {" ".join(map(str, seeds))})'
        add('--seeds', type=int, nargs='+', default=seeds, metavar='SEED', help=seeds_help)
        add('--publish', action='store_true', help='write the scores to results.json and their table to README.md')
        if data:
            add(data.option, dest='source', metavar='PATH', help=f'{data.what}; needed the first time')
        args = parser.parse_args()
        chosen = args.names or list(default or names)
        if not set(chosen) <= set(names):
            parser.error(f'choose from {", ".join(names)}')
        if data and not data.made.exists():
            if not args.source:
                parser.error(f'{data.option} is needed the first time: {data.what}')
            data.make(args.source)
        by_seed = [{name: run(name, seed) for name in chosen} for seed in args.seeds]
        scores = {name: [each[name] for each in by_seed] for name in chosen}
        text = table(scores)
        if args.publish:
            publish(folder, names, scores, table)
        print(text)

    return command_line(main, 'Interrupted; the same command continues.')


def publish(
    folder: Path, names: Sequence[str], scores: dict[str, list], table: Callable[[dict[str, list]], str]
) -> None:
    """Puts scores into results.json, and its table between ``<!-- results -->`` and ``<!-- end -->`` of README.md.

    Of others of the ``names`` stays what was published before.
    """
    file = folder / 'results.json'
    before = json.loads(file.read_text()) if file.exists() else {}
    scores = {name: runs for name, runs in {**before, **scores}.items() if name in names}
    write(file, scores)
    fill_page(folder / 'README.md', results=lambda _: table(scores))


def kept(file: Path, config: str, options: dict[str, Any], compute: Callable[[], Any]) -> Any:
    """What a JSON file holds; if there is none, what ``compute`` returns is written to it first.

    Before that, a hash of the config with the options is written to ``settings.json`` beside it.

    Raises:
        UsageError: If another hash is there: the score, or the checkpoint to resume from, is of another training.
    """
    settings = file.with_name('settings.json')
    now = hashlib.sha1(repr(load_config(config, options).to_dict()).encode()).hexdigest()[:10]
    if not settings.exists():
        write(settings, now)
    elif json.loads(settings.read_text()) != now:
        raise UsageError(f'{file.parent} has a training with other settings; move it away, or delete it.')
    if not file.exists():
        write(file, compute())
    return json.loads(file.read_text())


def write(file: Path, value: Any) -> None:
    """Writes a JSON file, as a whole or not at all."""
    with atomic_write(file) as stream:
        stream.write(json.dumps(value, indent=1).encode())


def spread(values: Sequence[float], digits: int) -> str:
    """The mean and, of several values, the standard deviation."""
    return f'{mean(values):.{digits}f}' + (f' ± {stdev(values):.{digits}f}' if len(values) > 1 else '')
