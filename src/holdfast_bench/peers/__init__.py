"""Other systems that benchmarks compare with, and the scripts that they run."""
