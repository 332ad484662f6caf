"""The differentiation of a trace into a forward and a backward, rule by rule."""
