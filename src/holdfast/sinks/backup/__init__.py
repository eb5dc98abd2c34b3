"""Backup of a run: copies in a second store while it trains, and a run directory made of them.

`backup_sink` starts `copy_process`, which copies; `run_copy` knows what is copied besides
checkpoints, and `restore` makes a run directory of it.
"""
