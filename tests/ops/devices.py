"""Where and how an operator shall give the same float32 result."""

import contextlib

import pytest
import torch


@contextlib.contextmanager
def settings(name: str):
    """Yields the device of a setting, TF32 or autocast switched on as its name says."""
    device, _, arithmetic = name.partition('-')
    precision = torch.get_float32_matmul_precision()
    autocast = torch.autocast(device, torch.bfloat16, enabled=arithmetic == 'autocast')
    try:
        torch.set_float32_matmul_precision('high' if arithmetic == 'tf32' else precision)
        with autocast:
            yield device
    finally:
        torch.set_float32_matmul_precision(precision)


def cpu_autocast(dtype: torch.dtype) -> torch.autocast:
    """Skips the test where torch has none of this type, as torch 2.0 has none of float16."""
    try:
        with torch.autocast('cpu', dtype):
            return torch.autocast('cpu', dtype)
    except RuntimeError as error:
        pytest.skip(str(error))


every_setting = pytest.mark.parametrize(
    'setting',
    [
        'cpu',
        'cpu-autocast',
        *(pytest.param(name, marks=pytest.mark.cuda) for name in ('cuda', 'cuda-tf32', 'cuda-autocast')),
    ],
)
