"""Writes the fixtures of tests/golden anew; see README.md.

python tests/golden/make_golden.py heads formats
"""

import json
import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from tests.golden import command_lines, formats, seeded_heads

FOLDER = pathlib.Path(__file__).resolve().parent


def write_seeded_heads() -> None:
  """The bits of every head."""
  content = {
    "fingerprint": seeded_heads.fingerprint(),
    "heads": seeded_heads.train_all(),
  }
  text = json.dumps(content, indent=1) + "\n"
  (FOLDER / "seeded_heads.json").write_text(text)


def write_formats() -> None:
  """Caches, heads and a ledger, and what commands say of them."""
  with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    formats.make_formats()
    formats.pack(pathlib.Path(folder))
  write_results()


def write_results() -> None:
  """What commands say of the files that are in the archive."""
  with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    formats.unpack(pathlib.Path(folder))
    text = json.dumps(formats.results(), indent=1) + "\n"
  (FOLDER / "formats.json").write_text(text)


def write_commands() -> None:
  """Exit statuses and keys of all commands."""
  with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    command_lines.make_folder(pathlib.Path(folder))
    text = json.dumps(command_lines.run_lines(), indent=1) + "\n"
  (FOLDER / "commands.json").write_text(text)


WRITERS = {
  "heads": write_seeded_heads,
  "formats": write_formats,
  "results": write_results,
  "commands": write_commands,
}

if __name__ == "__main__":
  for chosen in sys.argv[1:]:
    WRITERS[chosen]()
