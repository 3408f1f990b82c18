"""What the demo model learns from: generated simple English, and the cleaned shared data."""
