"""Read the state of a running query from its driver, at the newest committed epoch; watch it.

A read: `states` asks `newest_handles` for the epoch, and a replica or `key_values` for entries.
"""
