"""One decode step, top to bottom. Nothing here prints, asks or reads a setting."""

import os

# Read by OpenMP when torch is imported: threads that spin while they wait starve every other program, and us.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
