"""One decode step and everything that it needs. This folder prints nothing, prompts nobody and reads no settings."""
