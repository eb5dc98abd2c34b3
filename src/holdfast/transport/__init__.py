"""How workers meet and how bytes pass between them, in ways that can be interrupted."""
