"""What the demo model learns from: generated simple English, the cleaned shared data, the program's own help."""
