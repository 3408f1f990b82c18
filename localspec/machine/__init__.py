"""This machine: its devices, their memory, and the formats that they compute in."""
