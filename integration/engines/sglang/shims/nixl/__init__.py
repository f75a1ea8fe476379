"""Stands before NIXL's own Python package, which does all the work: see `_api`."""
