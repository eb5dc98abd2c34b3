"""What /proc says of processes, whatever their names are."""

import os
import signal
import subprocess
import sys

import pytest

from holdfast.linux.process import stat_of

pytestmark = pytest.mark.slow


def test_a_process_is_alive_until_it_has_ended_and_then_gone(tmp_path):
    odd = tmp_path / "a) Z (b"
    odd.symlink_to(sys.executable)
    with subprocess.Popen([odd, "-c", "input()"], stdin=subprocess.PIPE) as child:
        pid = child.pid
        assert (stat_of(pid).is_alive, stat_of(pid).is_stopped) == (True, False)
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        assert (stat_of(pid).is_alive, stat_of(pid).is_stopped) == (True, True)
        child.kill()
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert not stat_of(pid).is_alive
    assert stat_of(pid) is None


def test_what_a_process_has_used_counts():
    before = stat_of(os.getpid()).ticks
    while stat_of(os.getpid()).ticks == before:
        pass
