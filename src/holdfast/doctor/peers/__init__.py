"""Checks between hosts: each joins the first one, and every pair measures its links.

first host                                    each other host
holdfast doctor JOB --hosts N                 holdfast doctor --join ADDRESS:PORT
── token, certificates: as for a run ───────▶
checks itself                                 checks itself
◀── report ──────────────────────────────────
── measure your link to … ──────────────────▶ ── ping, bytes ──▶ every other host
compares versions, numerics, clocks, links
── join this run ───────────────────────────▶ a trial run over all hosts
── conclusion ──────────────────────────────▶
"""
