"""What a benchmark reads of the machine and of processes."""
