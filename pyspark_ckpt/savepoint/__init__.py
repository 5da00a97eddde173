"""Copies that users own: take them, dispose of them."""
