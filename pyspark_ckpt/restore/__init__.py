"""Restores: plan one, seed a location, delete what was claimed, finish an exchange."""
