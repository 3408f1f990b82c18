"""One decode step and all it needs. Nothing here prints, asks or reads a setting."""
