"""The dashboard: a page in the browser that follows the runs of a directory."""
