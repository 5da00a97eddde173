"""How one run of a query ends: between epochs, drained, with a savepoint, or with a failure."""
