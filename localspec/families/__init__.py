"""The differences between families of models, as their config.json files state them."""
