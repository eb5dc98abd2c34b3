"""Live pages of one run, in a browser and in a terminal."""
