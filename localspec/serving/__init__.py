"""The chat over HTTP: OpenAI's API for one engine, open to every program on this machine that has the key."""
