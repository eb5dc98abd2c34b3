"""Running jobs: from the call or command that starts one to its result."""
