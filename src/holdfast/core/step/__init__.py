"""The arithmetic of a step: shards and plans, the reduction tree, seeds, who verifies what."""
