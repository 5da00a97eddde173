"""Savepoints under measurement: what taking one and restoring from it costs, alone and under load.

``python -m benchmarks.savepoint`` measures.
"""
