"""One file a method of drafting; base.py says what all of them are."""
