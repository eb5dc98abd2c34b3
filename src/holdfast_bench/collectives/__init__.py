"""Speed of all-reduces, with the columns of nccl-tests; see `benchmark`."""
