"""Whether a stored schema can become another one, and why not."""
