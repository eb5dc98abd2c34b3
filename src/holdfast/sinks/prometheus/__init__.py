"""Prometheus: what a run and its hosts measure, to be scraped."""
