"""The local copy, base snapshots and their upload."""
