"""Writes the fixtures of tests/golden anew; see README.md.

python tests/golden/make_golden.py heads
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from tests.golden import seeded_heads

FOLDER = pathlib.Path(__file__).parent


def write_seeded_heads() -> None:
  """The bits of every head."""
  content = {
    "fingerprint": seeded_heads.fingerprint(),
    "heads": seeded_heads.train_all(),
  }
  text = json.dumps(content, indent=1) + "\n"
  (FOLDER / "seeded_heads.json").write_text(text)


WRITERS = {"heads": write_seeded_heads}

if __name__ == "__main__":
  for chosen in sys.argv[1:] or WRITERS:
    WRITERS[chosen]()
