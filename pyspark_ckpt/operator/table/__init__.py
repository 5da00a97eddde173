"""The table below the states: keys, catalog, writes of an epoch, time to live, migration."""
