"""Access: who may see the dashboard from elsewhere, and stop a run with it."""
