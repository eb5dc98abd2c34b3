"""When checkpoints are saved, what becomes of them, and which one a run resumes from. Pure."""
