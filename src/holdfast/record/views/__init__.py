"""Views of a record: what a dashboard, a table or a line shows of a run."""
