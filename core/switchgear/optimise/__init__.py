"""Passes that leave out or make again what need not be computed or kept."""
