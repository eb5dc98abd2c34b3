"""Commands that show runs, and write what they have recorded and trained."""
