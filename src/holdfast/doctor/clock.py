"""Clock: whether this host's clock can be right, as far as it can tell by itself.

How far it is from the clocks of other hosts is measured with them; see `doctor.peers`.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Final

from holdfast.doctor.finding import Finding, advice, fault, ok

MAX_SKEW_S: Final = 5.0
"""Greatest difference of the clocks of hosts and file systems."""
REMEDY: Final = "synchronize it (chronyd, systemd-timesyncd or ntpd)"
_TIMEX_BYTES: Final = 208
_MAX_ERROR: Final = 3
_STATUS: Final = 5
_SECONDS: Final = 9
"""Words of `struct timex`; see adjtimex(2)."""
_UNSYNCHRONIZED: Final = 0x40

_libc = ctypes.CDLL(None, use_errno=True)


def clock() -> Finding:
    """Check that the clock is synchronized, runs forward, and is later than what it has dated."""
    before = time.monotonic_ns()
    wall = time.time()
    installed = max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))
    if time.monotonic_ns() < before:
        return fault("clock", "the monotonic clock ran backwards", "update the kernel or firmware")
    if wall < installed - MAX_SKEW_S:
        days = (installed - wall) / 86400
        return fault(
            "clock",
            f"it shows {_date(wall)}, {days:,.1f} days before holdfast was installed here",
            f"set it, and {REMEDY}; certificates count as not valid yet otherwise",
        )
    state = _kernel_state()
    if state is None:
        return ok("clock", f"{_date(wall)}; the kernel does not say whether it is synchronized")
    status, max_error_s, seconds = state
    if abs(seconds - wall) > MAX_SKEW_S:
        return fault(
            "clock",
            f"this process sees {_date(wall)}, and the kernel's clock shows {_date(seconds)}",
            "run without what changes the time of processes, such as faketime",
        )
    if status & _UNSYNCHRONIZED:
        return advice("clock", f"{_date(wall)}; not synchronized by NTP or PTP", REMEDY)
    return ok("clock", f"{_date(wall)}; synchronized, at most {max_error_s:.3f} s off")


def written_at(path: Path) -> Finding:
    """Check that the clock of a file system agrees: that of a server may be another one."""
    ahead = path.stat().st_mtime - time.time()
    found = f"dates a new file {abs(ahead):.1f} s {'after' if ahead > 0 else 'before'} this host"
    if abs(ahead) > MAX_SKEW_S:
        return advice("disk clock", found, f"{REMEDY} there, and on this host")
    return ok("disk clock", f"agrees within {MAX_SKEW_S:.0f} s")


def _kernel_state() -> tuple[int, float, float] | None:
    """The status, the largest possible error and the time of the kernel's clock, seconds; None if
    it may not be asked.
    """
    words = (ctypes.c_long * (_TIMEX_BYTES // 8))()
    if _libc.adjtimex(words) < 0:
        return None
    return words[_STATUS] & 0xFFFFFFFF, words[_MAX_ERROR] / 1e6, float(words[_SECONDS])


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
