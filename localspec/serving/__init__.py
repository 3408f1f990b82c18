"""The same over HTTP: the API that OpenAI's clients speak, for one engine and whoever on this machine has the key."""
