"""What is on disk: file formats, names and the one module that writes files."""
