"""One training step: shard gradients in, committed weights out."""
