"""Audit: what the record of a run proves about it, and what it does not.

    metrics.jsonl ─▶ step_checks each step once, with the samples and shards of its batch
    manifests ─────▶ samples     the sample order: each sample once per epoch, computed again
                     stored      checkpoints agree with the steps
    events.jsonl ──▶ lineage     starts, generations, where each began, which steps it computed

It only reads, and trusts no summary that a run has written of itself.
"""
