"""Loads the target, drafter and phrase pool of a choice, and measures costs and other properties of the model."""
