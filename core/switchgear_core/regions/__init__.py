"""Regions for fusion executors."""
