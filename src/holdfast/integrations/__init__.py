"""Integrations: holdfast inside of programs that other systems run."""
