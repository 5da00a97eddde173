"""The operator in Spark's plan. Driver only."""
