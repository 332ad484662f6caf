"""The work of a call: finding the entry that fits, running it, autograd, write-back, fallback."""
