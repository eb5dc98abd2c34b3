"""Messages between processes, and how they are encoded."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it prints every lost connection
