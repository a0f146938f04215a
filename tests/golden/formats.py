"""Caches, heads and a ledger of the day when the golden files were made."""

import pathlib
import tarfile
from typing import Any

import numpy as np
from safetensors import numpy as safetensors

from tests.golden.commands import json_of, run_command, settled

FOLDER = pathlib.Path(__file__).parent
# Shards are padded to 128 KiB each: packed, all of it is a few kilobytes.
ARCHIVE = FOLDER / "formats.tar.gz"
NUM_CLASSES = 4
FEATURE_DIM = 8
DELTA = "1e-4"

# The cache of each head, its epsilon, the larger one, and its flags. With as
# many rows as "lawns" has, `auto` releases the second moment as well.
HEADS = {
  "auto": ("train", 1, 4, ""),
  "lamb": ("train", 1, 4, "--head lamb"),
  "balanced": ("train", 1, 4, "--balanced"),
  "units": ("wards", 1, 4, ""),
  "whitened": ("lawns", 4, 8, ""),
}


def write_vectors(name: str, num_rows: int, seed: int) -> None:
  """An npz of made-up embeddings, three rows for each patient."""
  centers = np.random.default_rng(0).choice(
    [-1.0, 1.0], (NUM_CLASSES, FEATURE_DIM)
  )
  random = np.random.default_rng(seed)
  labels = random.permutation(np.arange(num_rows) % NUM_CLASSES)
  scatter = 0.5 * random.standard_normal((num_rows, FEATURE_DIM))
  np.savez(
    f"{name}.npz",
    embedding=(centers[labels] + scatter).astype(np.float32),
    label=labels,
    patient=np.arange(num_rows) // 3,
  )


def make_formats() -> None:
  """Writes caches, heads and a ledger into the current folder."""
  write_vectors("train", 240, seed=1)
  write_vectors("test", 80, seed=2)
  write_vectors("wards", 240, seed=3)
  write_vectors("lawns", 480, seed=5)
  lines = [
    "import train.npz --dataset-name pets --num-classes 4 --out train",
    "import test.npz --dataset-name pets --split test --num-classes 4"
    " --out test",
    "import wards.npz --dataset-name wards --num-classes 4"
    " --unit-name patient --out wards",
    "import lawns.npz --dataset-name lawns --num-classes 4 --out lawns",
    "budget --cache train --max-epsilon 18 --max-delta 1e-3"
    " --ledger ledger.sqlite",
  ]
  for name, (cache, epsilon, _, flags) in HEADS.items():
    lines.append(
      f"train --cache {cache} --epsilon {epsilon} --delta {DELTA} {flags}"
      f" --ledger ledger.sqlite --out heads/{name}"
    )
  for line in lines:
    status, _, err = run_command(line)
    assert status == 0, f"{line}\n{err}"


def nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
  """A member of the archive without its owner and time."""
  member.uid = member.gid = member.mtime = 0
  member.uname = member.gname = ""
  return member


def pack(folder: pathlib.Path) -> None:
  """Makes the archive of a folder's caches, heads and ledger."""
  with tarfile.open(ARCHIVE, "w:gz") as archive:
    for name in ("heads", "lawns", "ledger.sqlite", "test", "train", "wards"):
      archive.add(folder / name, name, filter=nobodys)


def unpack(folder: pathlib.Path) -> None:
  """Puts the caches, heads and ledger of the archive into a folder."""
  with tarfile.open(ARCHIVE) as archive:
    archive.extractall(folder, filter="data")


def saved_statistics(head: str) -> dict[str, Any]:
  """Key → shape of what a head saves for a larger epsilon, and precisions.

  A precision does not depend on noise. It tells whether what the earlier head
  had was found and added to: under another key it would be left aside silently.
  """
  saved = safetensors.load_file(pathlib.Path(head, "releases.safetensors"))
  return {
    key: [list(array.shape), float(array)]
    if key.startswith("precision/")
    else [list(array.shape)]
    for key, array in sorted(saved.items())
  }


def results() -> dict[str, Any]:
  """What commands say of the files, unpacked in the current folder.

  What does not depend on noise: no accuracy of a head that is trained here.
  """
  said: dict[str, Any] = {}
  ledger = "--ledger ledger.sqlite"
  said["budget before"] = json_of(f"budget {ledger}")
  for cache in ("train", "test", "wards", "lawns"):
    said[f"verify {cache}"] = json_of(f"verify {cache}")
    said[f"inspect {cache}"] = json_of(f"inspect {cache}")
  for name, (cache, _, epsilon, flags) in HEADS.items():
    head = f"heads/{name}"
    larger = f"larger/{name}"
    said[f"verify {head}"] = json_of(f"verify {head} {ledger}")
    said[f"inspect {head}"] = json_of(f"inspect {head}")
    said[f"evaluate {head}"] = json_of(f"evaluate {head} --cache test {ledger}")
    table = f"{name}.csv"
    said[f"predict {head}"] = json_of(f"predict {head} test --out {table}")
    rows = pathlib.Path(table).read_text().splitlines()
    # A logit may differ in its last digit; the note behind it is empty here.
    said[f"table of {head}"] = [row.rsplit(",", 2)[0] for row in rows]
    said[f"train {larger}"] = json_of(
      f"train --cache {cache} --from {head} --epsilon {epsilon}"
      f" --delta {DELTA} {flags} {ledger} --out {larger}"
    )
    said[f"statistics of {head}"] = saved_statistics(head)
    said[f"statistics of {larger}"] = saved_statistics(larger)
    said[f"verify {larger}"] = json_of(f"verify {larger} {ledger}")
  said["budget after"] = json_of(f"budget {ledger}")
  return settled(said)
