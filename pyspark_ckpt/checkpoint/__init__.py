"""Take the checkpoints of one query, retain them, and clean up after them."""
