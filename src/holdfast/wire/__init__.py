"""What processes say to each other, and how it is written down."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it tells the terminal of every lost connection
