import os
import subprocess
import sys

import pytest

from mmsoft.utils.threads import share_cores


@pytest.mark.parametrize('load, before, after', [
    (0.1, {}, {}),
    (1.5, {}, {'GOMP_SPINCOUNT': '3000'}),
    (1.5, {'GOMP_SPINCOUNT': '7'}, {'GOMP_SPINCOUNT': '7'}),
    (1.5, {'OMP_WAIT_POLICY': 'ACTIVE'}, {'OMP_WAIT_POLICY': 'ACTIVE'}),
])
def test_threads_wait_less_where_others_compute(monkeypatch, load, before, after):
    monkeypatch.setattr(os, 'getloadavg', lambda: (load, 0., 0.))
    monkeypatch.setattr(os, 'environ', dict(before))
    share_cores()
    assert os.environ == after


def test_tools_decide_before_torch_is_there():
    code = ('import os, sys\n'
            'os.getloadavg = lambda: (2., 2., 2.)\n'
            'from mmsoft.apis.cli import command_line\n'
            'import mmsoft.apis.cli as cli\n'
            'cli.check_hosts = lambda: print(os.environ["GOMP_SPINCOUNT"], "torch" in sys.modules)\n'
            'command_line(lambda: None)')
    environ = {name: value for name, value in os.environ.items() if not name.startswith(('GOMP', 'OMP'))}
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env=environ)
    assert done.stdout == '3000 False\n', done.stderr
