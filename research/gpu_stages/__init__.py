"""The stages of `gpu_proof.py`. Each file has the measurements of one stage, and writes its part of the page."""
