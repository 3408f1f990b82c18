"""Trains drafters: texts become batches, one loop trains every kind, and the result is measured and written."""
