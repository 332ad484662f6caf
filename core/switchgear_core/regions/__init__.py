"""Regions for executors that fuse."""
