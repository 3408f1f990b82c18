"""The screens: the chat, the dialogs above it, and the race and X-ray."""
