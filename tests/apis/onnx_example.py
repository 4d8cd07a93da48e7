"""A detector without PyTorch: NumPy, OpenCV and ONNX Runtime. The page on deployment shows this file."""

import json

import cv2
import numpy as np
import onnxruntime


def detect(file, image_file, min_score=0.3):
    """Boxes (n, 4) as x1, y1, x2, y2 in pixels of the image, scores (n, ) and names of classes."""
    session = onnxruntime.InferenceSession(file, providers=['CPUExecutionProvider'])
    meta = json.loads(session.get_modelmeta().custom_metadata_map['mmsoft'])
    image = cv2.imread(image_file)

    # As the config's test pipeline does, here Resize with keep_ratio=True.
    (resize,) = (step for step in meta['pipeline'] if step['type'] == 'Resize')
    height, width = image.shape[:2]
    scale = min(max(resize['scale']) / max(height, width), min(resize['scale']) / min(height, width))
    rows, columns = int(height * scale + 0.5), int(width * scale + 0.5)
    resized = cv2.resize(image, (columns, rows), interpolation=cv2.INTER_LINEAR)

    # As the config's data preprocessor does: channels, normalisation, zeros at the right and bottom.
    if meta['channel_order'] == 'RGB':
        resized = resized[..., ::-1]
    pixels = (resized - np.float32(meta['mean'])) / np.float32(meta['std'])
    padding = [(0, -side % meta['pad_divisor']) for side in (rows, columns)]
    images = np.pad(pixels, [*padding, (0, 0)]).transpose(2, 0, 1)[None].astype(np.float32)

    boxes, scores, labels = session.run(None, dict(images=images, image_size=np.array([rows, columns])))[:3]
    found = scores >= min_score
    boxes = boxes[found] / np.float32([columns / width, rows / height] * 2)
    return boxes, scores[found], [meta['dataset_meta']['classes'][label] for label in labels[found]]
