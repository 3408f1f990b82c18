"""Downloads models and prepares them for use: what to fetch for a name, the steps of a pull as events, and conversion
of published drafters."""
