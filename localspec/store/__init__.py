"""The data saved between sessions: conversations, phrases and measurements, in one SQLite file."""
