"""Brings a model to this machine: what to fetch for a name, the steps of a pull as events, conversion of published
heads."""
