"""One worker on a GPU compared with the loop that people write without holdfast."""
