"""The front end: from a function and its arguments to a trace, its inputs and its results."""
