"""What the hardware of a host reaches: measured, or known of it."""
