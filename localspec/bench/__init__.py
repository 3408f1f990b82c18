"""The same prompts, plain and speculative, side by side on this machine."""
