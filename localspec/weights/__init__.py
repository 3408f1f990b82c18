"""How weights are stored: safetensors, GGUF and packed files, and how they are opened."""
