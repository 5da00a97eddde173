"""Plans a restore, seeds a location, claims a savepoint, rolls back."""
