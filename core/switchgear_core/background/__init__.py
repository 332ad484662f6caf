"""Compiling in the background, and decisions on disk."""
