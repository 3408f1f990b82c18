"""Tensors in torch: the transformers, their weights and caches, and the base of training drafters."""
