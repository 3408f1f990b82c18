"""What families of models differ in, as their config.json says."""
