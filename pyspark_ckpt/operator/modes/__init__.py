"""The ways in which a processor gets its rows and yields its output: calls, and a view of rows."""
