"""What opens above the chat, and the chat itself: a screen each."""
