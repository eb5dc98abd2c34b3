"""Tasks: model, loss and data put together. The user's own are loaded the same way."""
