"""What a conversation is made of."""

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": text}
