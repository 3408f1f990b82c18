"""The stages of `gpu_proof.py`, a file each: its measurements, and its part of the page."""
