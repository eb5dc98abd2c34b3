"""Device queue: the work of a device, which it does in order and later than it is asked to."""

from __future__ import annotations

from collections.abc import Callable

import torch


class DeviceQueue:
    """The work that this thread gives to a device. A CPU does it at once.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def run(self, work: Callable[[], object]) -> None:
        """Have the device do `work`, after all that it was given before."""
        work()

    def wait(self) -> None:
        """Wait until all work is done. None of it waits for another worker, so this ends even if
        another one was lost.
        """
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
