"""Portable numerics: what makes processors of different makers compute the same bits.

Libraries choose their kernels by the processor's instruction sets and, in MKL, by its maker, and
different kernels add in different orders. ATen and oneDNN are held to AVX2, which x86-64 processors
have had since 2013 (Intel) and 2015 (AMD). MKL needs its branch for all makers: on a processor that
is not Intel's, the one called AVX2 is another one than there.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

PINNED: Final = MappingProxyType(
    {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
)
"""Environment variables of MKL, ATen and oneDNN, which they read when they are loaded."""
