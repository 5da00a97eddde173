"""Peers that are no Spark query; each script runs in a virtual environment of its own."""
