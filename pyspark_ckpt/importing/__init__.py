"""Make savepoints of stopped queries of Spark's own stateful operators."""
