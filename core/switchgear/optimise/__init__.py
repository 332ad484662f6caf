"""Passes that remove or rewrite lines whose results need not be computed or kept."""
