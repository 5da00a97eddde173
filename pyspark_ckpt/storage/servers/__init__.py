"""Storages at a server: one module for each kind, above what they have in common."""
