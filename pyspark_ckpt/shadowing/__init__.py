"""Shadows: a candidate program runs beside a query, on the same epochs, and is compared with it."""
