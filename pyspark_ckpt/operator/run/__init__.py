"""One epoch of one subtask, and its barrier."""
