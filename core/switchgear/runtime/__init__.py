"""What happens at a call: which entry fits, running it, autograd, what was written, falling back."""
