"""What users call to build, start and restore queries."""
