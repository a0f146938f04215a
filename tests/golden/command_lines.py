"""One success and typical failures of every command, for `commands.json`."""

import json
import pathlib
from typing import Any

import numpy as np

from tests.golden.commands import key_paths, run_command
from tests.golden.formats import unpack, write_vectors

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "configs" / "digits.npz"
NUM_IMAGES = 60
BUDGET = "--epsilon 2 --delta 1e-3 --ledger own.sqlite"

# In this order, each with --json, in one folder that holds the golden caches
# and heads. What is named twice would be there already: that is a failure.
LINES = (
  "extract digits.npz --backbone glyph_vit --out digits",
  "extract digits.npz --backbone no_such --out other",
  "extract no_such.npz --backbone glyph_vit --out other",
  "extract broken --backbone glyph_vit --out other",
  "import vectors.npz --num-classes 4 --dataset-name own --out own",
  "import vectors.npz --num-classes 2 --out narrow",
  "import no_such.npz --out narrow",
  "inspect digits.npz",
  "inspect own",
  "inspect heads/auto",
  "inspect ledger.sqlite",
  "inspect broken",
  "inspect no_such",
  f"train --cache own {BUDGET} --out head",
  f"train --cache own {BUDGET} --noise-seed 1 --out seeded",
  f"train --cache own {BUDGET} --head no_such --out other",
  f"train --cache no_such {BUDGET} --out other",
  f"train --cache damaged {BUDGET} --out other",
  f"train --cache digits {BUDGET} --head lamb --out image_head",
  "sweep --cache own --eval-cache test --epsilons 1 2 --delta 1e-3"
  " --ledger own.sqlite --out run",
  "sweep --cache own --eval-cache test --epsilons 1 1 --delta 1e-3"
  " --ledger own.sqlite --out other",
  "inspect run",
  "evaluate head --cache test",
  "evaluate head --cache test --private-eval 1 --delta 1e-3"
  " --ledger own.sqlite",
  "evaluate head --cache digits",
  "evaluate no_such --cache test",
  "predict head test --out table.csv",
  "predict image_head digits.npz --top-k 2 --out images.csv",
  "predict head no_such --out other.csv",
  "predict image_head broken --out other.csv",
  "export head --to model --registry --ledger own.sqlite",
  "export seeded --to other",
  "export no_such --to other",
  "report run",
  "report head",
  "report no_such",
  "budget --ledger own.sqlite",
  "budget --cache own --max-epsilon 18 --max-delta 1e-2 --ledger own.sqlite",
  "budget --cache own --max-epsilon 18 --ledger own.sqlite",
  "budget --cache no_such --ledger own.sqlite",
  "verify own",
  "verify head --ledger own.sqlite",
  "verify head --ledger ledger.sqlite",
  "verify damaged",
  "verify no_such",
  "audit --epsilon 2 --delta 1e-3 --head lamb --cache own --canaries 100"
  " --ledger own.sqlite",
  "audit --epsilon 2 --delta 1e-3 --canaries 1",
  "demo --out finished",
  "demo --out own",
)


def make_folder(folder: pathlib.Path) -> None:
  """Puts what the lines read into the current folder."""
  unpack(folder)
  write_vectors("vectors", 200, seed=4)
  with np.load(DIGITS) as digits:
    image = digits["test_image"][:NUM_IMAGES]
    label = digits["test_label"][:NUM_IMAGES]
  np.savez("digits.npz", image=image, label=label, class_names=[*"0123456789"])
  # A folder of images of which none can be read.
  for name in ("cat", "dog"):
    pathlib.Path("broken", name).mkdir(parents=True)
    pathlib.Path("broken", name, "1.png").write_bytes(b"not an image")
  # A cache whose shard is not what its metadata says.
  pathlib.Path("train").rename("damaged")
  (shard,) = pathlib.Path("damaged").glob("*.array_record-*")
  content = bytearray(shard.read_bytes())
  content[len(content) // 2] ^= 1
  content[100] ^= 1
  shard.write_bytes(content)
  pathlib.Path("finished", "results").mkdir(parents=True)


def run_lines() -> dict[str, dict[str, Any]]:
  """Line → its exit status, and the paths of the keys of what it says."""
  found = {}
  for line in LINES:
    status, out, _ = run_command(f"{line} --json")
    keys = sorted(key_paths(json.loads(out))) if out else []
    found[line] = {"status": status, "keys": keys}
  return found
