"""Exports our drafters in the layouts of other inference engines."""
