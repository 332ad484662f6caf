"""Families of random programs; see `program`."""
