"""Symbols, values and traces: what a program is, how it prints, and what is checked of it."""
