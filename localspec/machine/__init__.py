"""What this machine is: its devices, their memory, and what they can compute with."""
