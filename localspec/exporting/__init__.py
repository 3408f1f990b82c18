"""Exports drafters in the layouts of other inference engines."""
