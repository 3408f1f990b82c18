"""Where models come from: what a pull would fetch, the fetching, and the common cache it goes to."""
