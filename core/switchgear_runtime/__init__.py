"""The work of a call: lookup of an entry, execution, autograd, write-back, fallback."""
