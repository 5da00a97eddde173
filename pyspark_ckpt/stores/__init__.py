"""Where the checkpoints of a location are, which are complete, and who may write the next one."""
