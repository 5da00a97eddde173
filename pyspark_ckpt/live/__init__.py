"""Read the state of a running query from its driver, at the newest committed epoch; watch it."""
