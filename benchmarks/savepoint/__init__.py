"""Measurements of savepoints: the cost of taking and restoring one, alone and under load.

``python -m benchmarks.savepoint`` measures.
"""
