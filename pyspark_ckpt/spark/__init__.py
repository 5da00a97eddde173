"""All that knows Spark's files, classes and settings; a new Spark version changes only this."""
