"""Metrics of running queries: what they are, their values, and the reporters that publish them.

A metric: `declared` lists it, `values` has its value, `reporters` opens `prometheus_endpoint` or
`otlp_exports`.
"""
