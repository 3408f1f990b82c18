"""Drafters of ours in the layouts that inference engines read."""
