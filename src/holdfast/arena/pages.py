"""Memory in huge pages: with pages of 4 KiB, a step spends a tenth of its time on TLB misses.

The kernel seldom backs a memory file with huge pages by itself (`shmem_enabled` is `never` on most
hosts). Since Linux 6.1 it collapses existing pages on request: see MADV_COLLAPSE in madvise(2). An
older kernel keeps the small pages.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

PAGE: Final = 4096
HUGE_PAGE: Final = 2 << 20
_MADV_DONTNEED: Final = 4
_MADV_REMOVE: Final = 9
_MADV_COLLAPSE: Final = 25
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def map_file(fd: int, size_bytes: int, offset: int, *, private: bool = False) -> memoryview:
    """Map a range of a memory file so that huge pages fit.

    Args:
        fd: The file.
        size_bytes: The size of the range.
        offset: Its start in the file, a multiple of HUGE_PAGE.
        private: True if writes stay in this process; see `drop_private_pages`.

    Raises:
        OSError: It cannot be mapped.
    """
    # Python's mmap takes no address, so reserve a range of addresses and map the file over it.
    place = _reserve(size_bytes + HUGE_PAGE, _MAP_NORESERVE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(place))
    # The file is mapped at a huge page's address, within the reserved range; the rest stays unused.
    shift = -address % HUGE_PAGE
    sharing = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    access = mmap.PROT_READ | mmap.PROT_WRITE
    flags = sharing | _MAP_FIXED
    if _libc.mmap(address + shift, size_bytes, access, flags, fd, offset) != address + shift:
        raise OSError(ctypes.get_errno(), "the arena could not be mapped")
    return memoryview(place)[shift : shift + size_bytes]


def populate(address: int, size_bytes: int) -> None:
    """Back a range of a mapped memory file with huge pages; its content stays."""
    # Only whole huge pages within the range; the ends keep small pages.
    first = -(-address // HUGE_PAGE) * HUGE_PAGE
    end = (address + size_bytes) // HUGE_PAGE * HUGE_PAGE
    for place in range(first, end, HUGE_PAGE):
        ctypes.c_char.from_address(place).value  # noqa: B018  # makes the first of its small pages
    if first < end:
        _libc.madvise(first, end - first, _MADV_COLLAPSE)  # if that fails, they stay small


def drop_private_pages(address: int, size_bytes: int) -> None:
    """Drop what this process has written to a private mapping: it reads as the file does again.

    A page that was never written to is the file's own, so this costs microseconds.

    Raises:
        OSError: The kernel does not drop them, for example because they are locked in memory.
    """
    if _libc.madvise(address, size_bytes, _MADV_DONTNEED):
        raise OSError(
            ctypes.get_errno(), "private pages of the gradient could not be dropped; unlock memory"
        )


def give_back(address: int, size_bytes: int) -> None:
    """Free a page-aligned range of a mapped memory file; it reads as zeros from now on."""
    _libc.madvise(address, -(-size_bytes // PAGE) * PAGE, _MADV_REMOVE)


def _reserve(size_bytes: int, flags: int) -> mmap.mmap:
    return mmap.mmap(-1, size_bytes, flags=flags | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
