"""The table below the states: stored keys, catalog, writes of an epoch, time to live."""
