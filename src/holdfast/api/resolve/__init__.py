"""Numbers that a run finds before its first step, by trials: its workers and its shards."""
