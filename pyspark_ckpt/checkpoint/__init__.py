"""The driver side: taking, keeping, cleaning and restoring checkpoints and savepoints."""
