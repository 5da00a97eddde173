"""The ways in which a processor gets its rows and yields its output; each is a module."""
