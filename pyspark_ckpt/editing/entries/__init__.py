"""Entries of an edit, on executors: encoded from rows, moved in blocks, sorted, written."""
