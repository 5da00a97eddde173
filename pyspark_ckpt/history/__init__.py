"""Records of what became of checkpoints and savepoints, readable without Spark."""
