"""Signals between an agent and its parent."""

import signal
import subprocess

from holdfast.linux.lifeline import LEAVE


def test_an_agent_without_a_handler_outlives_the_signal_to_leave():
    with subprocess.Popen(["sleep", "60"]) as starting:
        starting.send_signal(LEAVE)
        starting.send_signal(signal.SIGPWR)  # of two that wait, the lower one is delivered first
        assert starting.wait(10) == -signal.SIGPWR
