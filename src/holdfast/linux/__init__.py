"""What the Linux kernel tells and gives: /proc, control groups, pidfds, futexes, file locks."""
