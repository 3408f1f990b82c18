"""The differences between families of models, as their config.json says them."""
