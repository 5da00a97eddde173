"""Open a savepoint, checkpoint or location: its contents, and its states as typed tables."""
