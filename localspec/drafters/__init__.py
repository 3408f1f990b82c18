"""One file per method of drafting; `trained.py` is the base of drafters with weights, and loads them."""
