"""What a processor sees in an epoch, recorded, so that it can be replayed without Spark."""
