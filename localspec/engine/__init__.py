"""Turns a choice into a loaded target, a drafter and a pool, and measures costs and other properties of the model."""
