"""Conversations, how a chat begins, and the figures shown during it."""
