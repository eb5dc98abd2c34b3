"""The one holdfast process on a host that starts workers, watches them and cleans up."""
