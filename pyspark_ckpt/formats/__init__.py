"""Every byte layout and every file name on disk."""
