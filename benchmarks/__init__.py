"""Benchmarks: this library against PySpark's own stateful operators, as ratios within one run."""
