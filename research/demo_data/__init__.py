"""The training data of the demo model: generated simple English, and the cleaned shared data."""
