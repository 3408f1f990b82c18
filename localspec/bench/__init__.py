"""Compares the same prompts with and without drafts on this machine."""
