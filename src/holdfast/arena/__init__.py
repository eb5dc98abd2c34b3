"""The shared memory of one host: what it holds, where, and how processes wait on it."""
