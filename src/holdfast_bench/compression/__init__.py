"""What compressed gradients do to learning: loss by steps and by bytes; see `benchmark`."""
