"""Make savepoints of stopped queries of Spark's own stateful operators.

An import: `import_checkpoint`, `stopped_query`, `spark_operator`, `state_rows`; then as an edit.
"""
