from .rescale_pyramid import RescalePyramid

__all__ = ['RescalePyramid']
