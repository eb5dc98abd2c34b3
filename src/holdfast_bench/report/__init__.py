"""Report: a page with figures, drawn from stored results of benchmarks.

    results ──▶ figures (each with its answer and its source) ──▶ report.html, report.md

Nothing is said that was not measured: every number of a sentence carries the result that it is
from; see `report.cited`.
"""
