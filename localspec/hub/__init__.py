"""The sources of models: what a pull would fetch, the fetching, and the shared cache of the Hugging Face client."""
