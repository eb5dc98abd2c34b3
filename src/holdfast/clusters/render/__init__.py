"""Rendering: files for cluster managers, as plain data. Nothing here talks to one."""
