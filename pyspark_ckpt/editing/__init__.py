"""New savepoints from tables: edit one, put a table in as a state, erase keys, make a first one."""
