"""Linux: /proc, control groups, pidfds, futexes, file locks, durable files."""
