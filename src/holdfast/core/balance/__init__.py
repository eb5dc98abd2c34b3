"""Balance: how many shards each worker computes, from the times that were measured. Pure."""
