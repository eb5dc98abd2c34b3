"""Trackers: TensorBoard, MLflow, W&B and OpenTelemetry, fed from a run's own files.

    metrics.jsonl, recoveries.jsonl, system.jsonl
          │ spool.read(cursor)
          ▼
    Sender, a thread per tracker ── send(batch) ──▶ Tracker ──▶ server or file
          │ acknowledged
          ▼
    trackers/NAME.json: the next cursor

The files are the spool. So a tracker that is down or slow holds up nothing and loses nothing, and
what was acknowledged is not sent again.
"""
