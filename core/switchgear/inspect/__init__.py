"""What users ask of a compiled function."""
