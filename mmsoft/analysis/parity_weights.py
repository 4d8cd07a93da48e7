"""Weights and images that depend on names and shapes alone, the same on every machine; the parity fixtures use them."""
import zlib

import numpy as np
import torch
from torch import Tensor, nn

from mmsoft.checkpoint import to_mmsoft, to_published


def parity_tensor(name: str, shape: tuple) -> Tensor:
    """One tensor of a published network.

    Bottleneck tokens resemble each other with these weights, so that the inverse is far from trivial.

    Args:
        name (str): Its published name.
        shape (tuple): Its shape.

    Returns:
        Tensor: float32, or zeros of int64 for ``num_batches_tracked``.
    """
    if name.endswith('num_batches_tracked'):
        return torch.zeros(shape, dtype=torch.int64)
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    if name.endswith('running_var'):
        value = 1 + 0.2 * np.abs(noise)
    elif name.endswith(('running_mean', 'bias')):
        value = 0.05 * noise
    elif name.startswith(('pos_embed', 'cls_token')):
        value = 0.2 * noise
    elif 'gamma' in name.rsplit('.', 1)[-1]:
        value = 0.3 + 0.05 * noise
    elif name.endswith('Qnorm_act.0.weight'):
        value = 0.3 + 0.03 * noise
    elif len(shape) == 1:
        value = 1 + 0.1 * noise
    else:
        value = noise / np.sqrt(np.prod(shape[1:]))
    return torch.from_numpy(np.asarray(value, dtype=np.float32))


def load_parity_weights(model: nn.Module) -> nn.Module:
    """Fills one of our backbones with the weights that its published names stand for."""
    published = to_published(model.state_dict())[1]
    weights = {name: parity_tensor(name, tuple(tensor.shape)) for name, tensor in published.items()}
    model.load_state_dict({name[len('backbone.'):]: tensor for name, tensor in to_mmsoft(weights)[1].items()})
    return model


def parity_images(batch: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Waves plus noise, like normalised images: (batch, 3, height, width) of float32."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width].astype(np.float64)
    images = np.empty((batch, 3, height, width))
    for image in images.reshape(-1, height, width):
        fy, fx = rng.uniform(0.5, 4, 2)
        image[:] = np.sin(6.28 * (fy * y / height + fx * x / width) + rng.uniform(0, 6.28))
    images += 0.3 * rng.standard_normal(images.shape)
    return torch.from_numpy(images.astype(np.float32))
