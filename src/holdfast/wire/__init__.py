"""What processes say to each other, and how it is written down."""
