"""Running jobs: placing agents, and supervising them to the end."""
