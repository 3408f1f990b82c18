"""One file per drafting method; `trained.py` is the base of methods with weights, and loads them."""
