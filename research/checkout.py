"""The root directory of this checkout (`ROOT`). Importing this module makes tools/, tests/ and tui/ importable."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / folder) for folder in ("tools", "tests", "tui") if str(ROOT / folder) not in sys.path]
