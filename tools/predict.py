"""Predicts what is in pictures, and draws it: boxes, masks, semantic segmentation or classes."""
import argparse
import sys

try:
    import mmsoft  # noqa: F401  first of all: it says which host library does not fit
except ImportError as error:
    sys.exit(str(error))

from mmsoft.apis.cli import command_line  # noqa: E402
from mmsoft.apis.inference import predict  # noqa: E402


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='weights of the model')
    parser.add_argument('source', metavar='IMAGE_OR_FOLDER', help='a picture, or a folder of them with its subfolders')
    parser.add_argument('--out-dir', required=True, help='folder for the results; nothing there is overwritten')
    parser.add_argument('--device', help='cpu, cuda:0, … (default: the best there is)')
    parser.add_argument('--batch-size', type=int, default=1, help='most pictures to predict at once (default: 1)')
    parser.add_argument('--score-thr', type=float, default=0.3, help='least score of a drawn detection (default: 0.3)')
    parser.add_argument('--opacity', type=float, help="of what is drawn, 0 to 1 (default: the host's)")
    parser.add_argument('--palette', help='coco, voc, citys or random for detection; a data set such as ade20k for '
                        "segmentation (default: the model's)")
    parser.add_argument('--save-pred', action='store_true', help='also save COCO results, label maps or classes')
    return parser.parse_args()


def main() -> int:
    broken = []
    code = command_line(lambda: broken.extend(predict(**vars(parse_args()))), 'Interrupted; what was done is saved.')
    return code or int(bool(broken))


if __name__ == '__main__':
    sys.exit(main())
