"""What is kept between sessions: conversations, phrases and measurements, in one SQLite file."""
