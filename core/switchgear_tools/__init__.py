"""Tools next to the core: `explain`, `plan`, the command line, commands for the cache, and the doctor."""

#: Constants that the command line needs without PyTorch: the parts of an explanation, and the warning of
#: `switchgear cache import`.
PARTS = "operators", "gradients", "saved", "guards", "recompilations", "fallbacks"
TRUST = "code in FILE will run as you, so trust everyone who could write to it"
