"""Compares replies to the same prompts with and without drafts on this machine."""
