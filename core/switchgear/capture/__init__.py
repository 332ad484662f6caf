"""From a Python function to a trace: the doors that calls come in by, inputs, writes and results."""
