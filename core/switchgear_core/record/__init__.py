"""The recorder: the two doors for calls, the tape of recorded lines, and the protocol of features."""
