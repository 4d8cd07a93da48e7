"""Models out of Python: whole classifiers, segmenters and detectors as ONNX or torch.export files."""
