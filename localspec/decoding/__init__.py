"""The decode step, which extends a text by a few tokens. Nothing here prints, asks the user or reads settings."""
