"""How rows get from Spark's worker to an operator and back: through Arrow, or through pandas."""
