"""The chat and the dialogs above it: one screen each."""
