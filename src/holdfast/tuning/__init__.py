"""Searches: runs of one job with different values of some keys, of which the best is kept.

cli.tune, holdfast.tune ──▶ search ──▶ slots ──▶ slot   a process; runs trial after trial
                              │  └──▶ suggest           values of the next trial
                              └──▶ outcome              what is left behind
"""
