"""Which checkpoints are complete, and who may write the next one."""
