"""Tests of plugins: their implementations, grad rules, regions and passes, compared with PyTorch."""
