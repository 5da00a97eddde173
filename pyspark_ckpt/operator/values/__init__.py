"""Spark values as Python, MessagePack, JSON and Arrow, and back."""
