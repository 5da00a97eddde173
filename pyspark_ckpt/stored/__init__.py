"""What is stored of operators: read, compared, and written anew for other owners.

`state` is the one place that merges a base snapshot with its changes; what has to be in order for
that is sorted by `sorted_runs`. `comparison` reads through it. `replica` follows a query: it
applies the changes to a backend on the driver.

A rewrite: `rewrite` is the job, whose tasks read with `state`, place entries with `redistribution`
by the states of `unify`, gather them in `blocks` and write them with `writing`. Where key groups
can stay as they are stored, `division` takes the place of the job, and `savepoint_copy` copies
subtasks.
"""
