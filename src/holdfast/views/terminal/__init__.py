"""A run at a glance in a terminal, or as plain lines in a pipe."""
