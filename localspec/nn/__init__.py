"""Tensors in torch: the transformers, their weights and caches, and what trained drafters learn with."""
