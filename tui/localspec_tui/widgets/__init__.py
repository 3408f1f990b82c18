"""One thing on the screen each."""
