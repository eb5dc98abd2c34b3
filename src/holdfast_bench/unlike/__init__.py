"""Parts of `bench balance`: devices of unlike speed, what trains on them, and what is measured."""
