"""Conversations, how a chat begins, and the figures that are shown while it goes on."""
