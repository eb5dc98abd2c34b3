"""Doctor: checks whether a run would work, by doing what it does, and says what to do if not."""
