"""Stored weights: safetensors, GGUF and packed files, and how they are opened."""
