"""Files below a root: create whole and exclusively, read checked, delete."""
