"""One decode step and the parts that it needs. Nothing here prints, prompts the user or reads settings."""
