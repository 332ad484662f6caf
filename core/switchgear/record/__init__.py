"""The recorder: the two doors that calls come in by, what they leave on the tape, and the protocol of features."""
