"""Checks between hosts: a script job runs on the hosts of a job, and what it prints is compared.

    command ── script job: one worker on each host ──▶ on_host: checks itself, then its links
            ◀── logs of the run: a report of each ──── lines of JSON
    compare: versions, numerics, clocks, links, weights

Engines, joining, keys, addresses and logs are those of a run.
"""
