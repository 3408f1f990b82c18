"""Layers of transformers: Llama's layers, and other families' layers with different arithmetic."""
