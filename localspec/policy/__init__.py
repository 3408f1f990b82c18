"""What fits on a machine and what pays there: predictions, ranking by M, and the choice. Pure arithmetic."""
