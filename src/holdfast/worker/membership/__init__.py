"""A worker as a member of generations: joining, its state, and taking over that of another."""
