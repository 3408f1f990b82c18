"""A model comes to this machine: what to fetch for a name, the steps of a pull as events, published heads converted."""
