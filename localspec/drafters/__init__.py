"""One file a method of drafting; `trained.py` is what drafters with weights have in common, `saved.py` their files."""
