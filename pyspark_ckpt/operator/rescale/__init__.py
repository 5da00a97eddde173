"""State that moves to other subtasks."""
