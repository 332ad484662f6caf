"""The order of the passes, from the trace to the program that runs."""
