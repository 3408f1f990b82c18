"""Making drafters: texts become batches, one loop trains every kind, and what comes out is measured and written."""
