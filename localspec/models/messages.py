"""What a conversation is made of."""

# {"role": "system" | "user" | "assistant", "content": text}; "reasoning_content" is what the assistant thought before
Message = dict[str, str]
