"""Restores: plan one, seed a location, delete what was claimed, finish a swap."""
