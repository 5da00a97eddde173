"""Metrics of running queries: what they are, their values, and the reporters that publish them."""
