"""Models: names and cards, sizes, and the drafters that were made for them."""
