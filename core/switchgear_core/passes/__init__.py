"""The passes over a captured trace, and their order."""
