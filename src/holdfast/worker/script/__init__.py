"""Running a script of torchrun in place of a task."""
