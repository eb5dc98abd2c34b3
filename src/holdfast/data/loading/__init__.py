"""The way from a data set to the shards of a step: order, reading ahead, loader processes."""
