"""Savepoints: take copies that users own, and dispose of them."""
