"""Files of a run directory: their names, how they are written, and followed while they grow."""
