"""Trains every method and body of the zoo on generated shapes, beside a host's backbone, and writes docs/evidence.md."""
import argparse
import sys

from mmsoft.analysis.evidence.command import evidence, list_rows
from mmsoft.launch import command_line

if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, epilog='Interrupted, the same command goes on.')
    parser.add_argument('names', nargs='*', metavar='ROW', help='only these rows')
    parser.add_argument('--list', action='store_true', help='print the rows and stop')
    parser.add_argument('--work-dir', default='work_dirs/evidence', help='default: %(default)s')
    parser.add_argument('--docs', default='docs', help='folder of the page (default: %(default)s)')
    parser.add_argument('--jobs', type=int, default=1, help='trainings at a time (default: %(default)s)')
    parser.add_argument('--iterations', type=int, help='length of every training, to try the tool')
    args = vars(parser.parse_args())
    run = list_rows if args.pop('list') else lambda: evidence(**args)
    sys.exit(command_line(run, 'Interrupted; the same command goes on.'))
