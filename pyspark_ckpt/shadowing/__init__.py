"""Shadows: a candidate program runs next to a query, on the same epochs, and is compared to it."""
