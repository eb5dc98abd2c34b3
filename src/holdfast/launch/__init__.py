"""Starting processes: the fork server and its client, children, and what they inherit."""
