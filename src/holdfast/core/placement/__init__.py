"""Where workers run: shares of a host, and agents that are replaced."""
