"""Fetches models from the Hugging Face hub: the plan of a pull, the download, and the cache shared with other
programs."""
