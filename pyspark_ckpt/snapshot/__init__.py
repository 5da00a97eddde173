"""Open a savepoint, checkpoint or location: its contents, and its states as typed tables.

A read: `snapshot`, `views`, `reader`, `tables`, `columns`. By Spark: `data_source` in their place.
A difference: `difference`, `changed_entries`, `tables`.
"""
