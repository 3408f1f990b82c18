"""Loads the models, drafters and phrases that were chosen, answers prompts with them, and measures costs of a model."""
