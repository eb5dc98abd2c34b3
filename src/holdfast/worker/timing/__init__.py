"""Times of a step: measured, summed over the workers, and used to balance."""
