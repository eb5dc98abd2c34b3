"""Data sets by format: each reads published files into samples."""
