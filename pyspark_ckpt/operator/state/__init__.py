"""The states, timers and handle that a processor sees."""
