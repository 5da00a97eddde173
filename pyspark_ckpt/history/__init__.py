"""Records of completed and aborted checkpoints and savepoints; readable without Spark."""
