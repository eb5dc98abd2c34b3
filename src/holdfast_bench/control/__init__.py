"""Load of control: one real coordinator, and a stream for each of many agents."""
