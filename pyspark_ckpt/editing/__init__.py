"""New savepoints from tables: edit one, put a table in as a state, erase keys, make a first one.

An edit: `state_edit`, `operator_edit` for each operator, `typed_frames` for its tables, and at the
end `operator_job`, a rewrite of state whose rows are encoded by `encoding`.
"""
