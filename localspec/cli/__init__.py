"""One file a command: arguments, one call, print. `main.py` wires them; each file offers its `app`."""
