"""Runs captured epochs again without Spark, and says what differs."""
