"""Rows in, grouped by key; rows out."""
