"""Where what is known of a run goes: the terminal, files, notifications."""
