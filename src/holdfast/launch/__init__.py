"""Launch: starts processes: the fork server and its clients, children, and their environment."""
