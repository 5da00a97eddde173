"""Aggregates that are combined in each map task, before the shuffle, and merged into state."""
