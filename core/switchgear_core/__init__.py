"""The core: symbols, traces, recording, the registry, differentiation and the passes; it needs PyTorch and pluggy."""
