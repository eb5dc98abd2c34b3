"""Portable numerics: settings with which processors of different makers compute the same bits.

Libraries choose their kernels by the processor's instruction sets and, in MKL, by its maker, and
different kernels add in different orders. ATen and oneDNN are limited to AVX2, which x86-64
processors have had since 2013 (Intel) and 2015 (AMD). MKL needs its branch for all makers: its AVX2
branch on other processors differs from the one on Intel's.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

PINNED: Final = MappingProxyType(
    {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
)
"""Environment variables that MKL, ATen and oneDNN read when they are loaded."""
