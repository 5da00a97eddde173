"""Peers that are not Spark queries; each script runs in its own virtual environment."""
