"""The stages of `gpu_proof.py`, a file each: what is measured, and how the page tells it."""
