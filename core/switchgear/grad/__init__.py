"""From a trace to a forward and a backward, rule by rule."""
