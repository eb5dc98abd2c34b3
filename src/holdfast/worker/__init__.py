"""The training process: the session that user code sees, and the step behind it."""
