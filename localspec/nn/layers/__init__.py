"""Layers of transformers: Llama's, and those with other arithmetic."""
