"""Changes of a query's own location: restarts in place with other operators, and rollbacks."""
