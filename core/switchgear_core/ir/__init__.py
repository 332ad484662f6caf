"""Symbols, values and traces: the representation of a program, its text, and its verifier."""
