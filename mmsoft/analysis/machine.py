"""What a measurement was made on."""
import os
import platform
import re
from datetime import date
from pathlib import Path
from typing import Dict

import torch

from mmsoft.utils.hosts import HOSTS, installed


def describe_machine(device: str = 'cpu', threads: int = 1) -> Dict[str, str]:
    """Processor, memory, system and library versions, in words.

    Args:
        device (str): ``'cpu'`` or ``'cuda'``, which is described as well.
        threads (int): Threads that compute.

    Returns:
        dict[str, str]: Description by subject.
    """
    machine = {
        'date': date.today().isoformat(),
        'system': f'{platform.system()} {platform.release()}, Python {platform.python_version()}',
        'processor': f'{_processor()}, {os.cpu_count()} cores, {threads} threads used',
    }
    if hasattr(os, 'sysconf') and 'SC_PHYS_PAGES' in os.sysconf_names:
        machine['memory'] = f'{os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30:.0f} GiB'
    if hasattr(os, 'getloadavg'):
        machine['load at the start'] = f'{os.getloadavg()[0]:.1f} processes'
    if device != 'cpu':
        properties = torch.cuda.get_device_properties(0)
        machine['GPU'] = (f'{properties.name}, {properties.total_memory / 2**30:.0f} GiB, '
                          f'CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}')
    found = map(installed, HOSTS)
    machine['libraries'] = ', '.join([f'torch {torch.__version__}', *(' '.join(host) for host in found if host)])
    return machine


def _processor() -> str:
    try:
        return re.search(r'model name\s*:\s*(.*)', Path('/proc/cpuinfo').read_text()).group(1)
    except (OSError, AttributeError):
        return platform.processor() or platform.machine()
