"""The executor side: what happens to a row, and at the barrier, inside one subtask."""
