"""The chat over HTTP: OpenAI's API, for one engine and every program on this machine that has the key."""
