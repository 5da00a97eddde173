"""Keys whose processor raised: their rows are kept, and given to the processor when released."""
