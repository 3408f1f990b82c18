"""Transformers in torch: their layers, weights and caches, and the base for training drafters."""
