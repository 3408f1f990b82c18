"""Models: their names, files and sizes, and the drafters that were made for them."""
