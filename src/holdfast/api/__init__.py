"""The calls behind the commands, and behind `import holdfast`."""
