"""Tools beside the core: `explain`, `plan`, the command line, the cache's commands and the doctor."""

#: The parts of an explanation, and what `switchgear cache import` asks for: known without PyTorch.
PARTS = "operators", "gradients", "saved", "guards", "recompilations", "fallbacks"
TRUST = "code in FILE will run as you, so trust everyone who could write to it"
