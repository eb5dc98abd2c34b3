"""A cluster that exists in memory only, to try the core against every fault there is."""
