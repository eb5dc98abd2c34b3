"""The coordinator: who takes part in a run, written down so that it outlives its process."""
