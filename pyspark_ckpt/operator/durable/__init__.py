"""The local copy, base snapshots and their upload.

A base snapshot: `materialization` decides, `local_snapshots` takes and uploads it. A rebuild:
`local_copy` asks `stored_files` for what its handle names.
"""
