"""Where agents are placed. Here: on this machine."""
