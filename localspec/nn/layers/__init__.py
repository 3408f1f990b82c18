"""Layers of transformers: that of Llama, and those whose arithmetic is another."""
