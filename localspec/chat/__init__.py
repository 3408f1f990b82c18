"""Conversations, the start of a chat, and the figures displayed during it."""
