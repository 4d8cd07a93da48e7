"""The grid of pictures: one PNG, rows of images with captions."""

import cv2
import numpy as np

from mmsoft.visualization import Panel, contact_sheet


def image(height, width, color):
    return np.full((height, width, 3), color, np.uint8)


def test_writes_each_image_in_its_place(tmp_path):
    red, green, blue = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    rows = [
        [Panel(image(60, 80, red), 'image'), Panel(image(60, 80, green), 'prediction', [(0.2, 0.2)])],
        [Panel(image(90, 80, blue)), Panel(image(90, 80, red))],
    ]
    path = contact_sheet(rows, tmp_path / 'new' / 'sheet.png')
    sheet = cv2.imread(str(path))[..., ::-1]
    height, width = sheet.shape[:2]
    centres = [sheet[height * row // 20, width * column // 4].tolist() for row in (5, 14) for column in (1, 3)]
    assert centres == [list(color) for color in (red, green, blue, red)]
    assert [entry.name for entry in path.parent.iterdir()] == ['sheet.png']
