"""Compression of gradients: codecs that keep less of each value, and what becomes of the rest."""
