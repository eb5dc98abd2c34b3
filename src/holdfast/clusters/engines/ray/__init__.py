"""Ray: agents as actors of a Ray cluster."""
