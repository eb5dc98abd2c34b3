"""Results of benchmarks: files with their figures and the conditions of their measurement."""
