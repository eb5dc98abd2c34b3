"""The suite: all benchmarks, run one after the other, and compared with earlier results."""
