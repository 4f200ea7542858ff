"""Makes the helpers beside the tests (toys, mutants) importable; the test tree is no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
