"""Restarts of running queries in place: at another parallelism, or with other operators."""
