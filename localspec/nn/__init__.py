"""Tensors in torch: the transformers, their weights and caches, and what is learned of them."""

import os

# Read by OpenMP when torch is imported: threads that spin while they wait starve every other program, and us.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
