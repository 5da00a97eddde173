"""All that knows Spark's files, classes and settings: the port to the next Spark is here."""
