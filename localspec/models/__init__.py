"""What a model is: its name and card, its sizes, and the drafters that were made for it."""
