"""Restores: plan one, seed a location, delete what was claimed, roll back."""
