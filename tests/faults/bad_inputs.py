"""Bad command lines and damaged files, as many as are wanted, by a seed.

`make` makes one of everything that a command reads. `spoil` breaks a file of
it: its bytes, or what they mean (a value in JSON, a member of an npz), with the
digests beside it as they were or fitted anew. `nonsense` breaks the words.
"""

import contextlib
import dataclasses
import hashlib
import json
import random
import re
import shutil
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, features

from oneshot_dp.extract.cache.format import INFO_FILE, sha256_of
from oneshot_dp.pipeline.cli import COMMANDS, main
from oneshot_dp.pipeline.cli.program import load_command
from oneshot_dp.pipeline.heads.model_card import render_card
from tests.extract.sources.fixtures import encode_png, write_table
from tests.faults.harness import damaged, odd_files
from tests.pipeline.image_heads import ROOT, digits
from tests.sample_caches import clusters

SETUP = """\
import vectors.npz --num-classes 4 --dataset-name pets --out train
import test.npz --num-classes 4 --dataset-name pets --split test --out test
extract digits.npz --backbone glyph_vit --out digits
train --cache train --epsilon 1 --delta 1e-3 --out head
train --cache digits --epsilon 1 --delta 1e-3 --head lamb --out image_head
sweep --cache train --eval-cache test --epsilons 1 --delta 1e-3 --out run
export image_head --to model"""
LINES = """\
extract {digits.npz} --backbone glyph_vit --shard-rows 16 --out out
extract {photos} --backbone glyph_vit --units {owners.csv} --out out
extract {photos.tar} --backbone glyph_vit --num-classes 10 --units who --out out
extract {photos.parquet} --backbone glyph_vit --num-classes 10 --out out
extract {hive} --backbone glyph_vit --num-classes 2 --out out
import {hive_vectors} --num-classes 2 --out out
extract {photos} --backbone glyph_vit --weights {weights.safetensors} --out out
import {vectors.npz} --num-classes 4 --out out
import {vectors.parquet} --num-classes 4 --unit-name who --out out
train --cache {train} --epsilon 1 --delta 1e-3 --head lamb --out out
train --cache {train} --epsilon 1 --delta 1e-3 --start {start.npz} --out out
train --cache {train} --epsilon 2 --delta 1e-3 --from {head} --out out
sweep --cache {train} --eval-cache {test} --epsilons 1 2 --delta 1e-3 --out out
evaluate {head} --cache {test}
evaluate {head} --cache {test} --private-eval 1 --delta 1e-3
predict {image_head} {photos} --out out.csv
predict {image_head} {digits} --out out.csv
export {image_head} --to out --weights {weights.safetensors}
report {run}
report {head}
budget --cache {train} --max-epsilon 8 --max-delta 1e-3
verify {head}
verify {train}
audit --epsilon 1 --delta 1e-3 --head lamb --cache {train} --canaries 100
inspect {digits.npz}
inspect {photos.tar}
inspect {photos.parquet}
inspect {photos}
inspect {hive}
inspect {digits}
inspect {head}
inspect {run}
inspect {ledger.sqlite}
demo --out {owners.csv}""".splitlines()
NONSENSE = """\
%s {} - -- () . .. /dev/null /dev/full /dev/zero 0 -1 nan inf 1e999 1e-320 ε
-0.0 1.5 0x10 1,2 2 no True auto lamb 18446744073709551616 [:80%] [80%:10%] ٣
[:0%] /(?P<who>[^/_]+) (?P<a> no.py:f"""
# More than Python reads as a number.
DIGITS = "9".ljust(5000, "9")
WORDS = ["", "\n", " ", "\x00", "\x1b[31m", "\udcff", DIGITS]
WORDS += re.findall(r"\S+", NONSENSE)
NAMES = ["a b", "ε", "%41", "label=7", "label=", "=", "a\nb", "\udcff", "-x"]
"""Names of files, and so keys of a bucket, that a listing may trip over."""
PAX_SIZES = ["-5", "1e3", "", DIGITS, str(1 << 62)]
VALUES: Any = None, True, 0, -1, 1.5, 1e308, 2**70, "", "ε\0", [], {}, [[]]


def make(folder: Path) -> None:
  """Makes one of each thing in a folder, which is the current one."""
  images, labels = digits()
  image = images[:40]
  label = labels[:40]
  names = list("0123456789")
  np.savez("digits.npz", image=image, label=label, class_names=names)
  pixels = [each[..., 0] for each in image]
  _make_tables(folder, pixels, label)
  _make_photos(pixels, label)
  _make_hives(pixels)
  glyph_vit = ROOT / "extract" / "backbones" / "glyph_vit.safetensors"
  shutil.copy(glyph_vit, "weights.safetensors")
  for seed, name in enumerate(("vectors", "test")):
    vectors, of_four = clusters((40,) * 4, 8, seed=seed)
    np.savez(f"{name}.npz", embedding=vectors, label=of_four)
    if name == "vectors":
      who = np.arange(160) // 2
      columns = {"embedding": list(vectors), "label": of_four, "who": who}
      pq.write_table(pa.table(columns), "vectors.parquet")
  np.savez("start.npz", **{str(i): np.eye(8)[i] for i in range(4)})
  for line in SETUP.splitlines():
    assert main(line.split()) == 0, line


def _make_tables(folder: Path, pixels: list[np.ndarray], label: Any) -> None:
  """A tar and a Parquet file of the photographs, four of each person."""
  encoded = [encode_png(each) for each in pixels]
  labels = [int(each) for each in label]
  people = [i // 4 for i in range(40)]
  for kind in "tar", "parquet":
    path = folder / f"photos.{kind}"
    write_table(path, encoded, label=labels, who=people)


def _make_photos(pixels: list[np.ndarray], label: Any) -> None:
  """A folder of the photographs, half of them JPEG, and whose they are."""
  owners = ["file,who"]
  for i, each in enumerate(pixels):
    suffix = "jpg" if i % 2 else "png"
    path = Path("photos", str(label[i]), f"{i}.{suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(each).save(path)
    owners.append(f"{label[i]}/{path.name},p{i // 4}")
  Path("owners.csv").write_text("\n".join(owners))


def _make_hives(pixels: list[np.ndarray]) -> None:
  """Folders that say the label, as engines write them: images and vectors."""
  vectors, _ = clusters((20,) * 2, 8)
  for label in range(2):
    rows = slice(20 * label, 20 * label + 20)
    encoded = [encode_png(each) for each in pixels[rows]]
    tables: dict[str, Any] = {
      "hive": {"image": encoded},
      "hive_vectors": {"embedding": list(vectors[rows])},
    }
    for folder, columns in tables.items():
      path = Path(folder, f"label={label}", "part-0.parquet")
      path.parent.mkdir(parents=True)
      pq.write_table(pa.table(columns), path)


def nonsense(
  words: list[str], others: list[str], draw: random.Random
) -> list[str]:
  """One to three words that are others, more, gone, or at another place."""
  for _ in range(draw.choice((1, 1, 2, 3))):
    if len(words) < 2 or words[0] not in COMMANDS:
      break
    flags = dataclasses.fields(load_command(words[0]).Flags)
    # Of --hosts, another room: a host waits for others.
    names = sorted(
      {*[field.name for field in flags], "json", "help"} - {"hosts"}
    )
    flag = f"--{draw.choice(names).strip('_').replace('_', '-')}"
    place = draw.randrange(len(words))
    other = draw.randrange(1, len(words))
    values = others if draw.random() < 0.2 else WORDS
    value = draw.choice(values)
    match draw.randrange(5):
      case 0 | 1:
        words[other:other] = [flag, value]
      case 2:
        words[place] = value
      case 3:
        del words[other]
      case _:
        words[place], words[other] = words[other], words[place]
  return words


class Spoilt(NamedTuple):
  """A file that was broken.

  Attributes:
    file: which.
    fits: whether the digests beside it were made those of what it is now.
  """

  file: Path
  fits: bool


def spoil(place: Path, others: list[Path], draw: random.Random) -> Spoilt:
  """Breaks a file at this place, or below it."""
  files = [path for path in [place, *place.rglob("*")] if path.is_file()]
  file = draw.choice(sorted(files))
  has_sums = False
  match draw.randrange(11):
    case 10:
      _rename(file, place, draw)
    case 0:
      file.unlink()
    case 1:
      file.unlink()
      odd = sorted(odd_files(place.parent / "odd").values())
      draw.choice(odd).rename(file)
    case 2:
      shutil.copy(draw.choice(others), file)
    case 3 | 4 | 5:
      file.write_bytes(damaged(file.read_bytes(), draw))
    case _:
      _edit(file, draw)
      has_sums = file.suffix == ".npz"  # of its members, made anew
  fits = draw.random() < 0.5 or has_sums
  if fits and file.is_file() and file.stat().st_size < 1 << 30:
    with contextlib.suppress(Exception):  # what has no sense has no digest
      _fit_digests(file)
  return Spoilt(file, fits)


def _edit(file: Path, draw: random.Random) -> None:
  """Changes what the bytes mean."""
  match file.suffix:
    case ".json":
      value = json.loads(file.read_bytes())
      file.write_text(json.dumps(_edited_json(value, draw)))
    case ".npz":
      _edit_npz(file, draw)
    case ".safetensors":
      _edit_safetensors(file, draw)
    case ".parquet":
      _edit_parquet(file, draw)
    case ".tar":
      _edit_tar(file, draw)
    case ".png" | ".jpg":
      _edit_image(file, draw)
    case ".csv":
      _edit_owners(file, draw)
    case _:
      file.write_bytes(damaged(file.read_bytes(), draw))


def _rename(file: Path, place: Path, draw: random.Random) -> None:
  """Gives a file, or the folder that it is in, another name."""
  name = draw.choice(NAMES)
  is_below = file.parent not in (Path("."), place)
  if is_below and draw.random() < 0.5:
    file.parent.rename(file.parent.with_name(name))
  else:
    file.rename(file.with_name(f"{name}{file.suffix}"))


def _edit_tar(file: Path, draw: random.Random) -> None:
  """Puts a header of the PAX kind, whose size is odd, between two members."""
  info = tarfile.TarInfo("some/40.png")
  info.pax_headers = {"size": draw.choice(PAX_SIZES)}
  header = info.tobuf(tarfile.PAX_FORMAT)
  data = file.read_bytes()
  place = draw.randrange(len(data) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
  file.write_bytes(data[:place] + header + data[place:])


def _edit_image(file: Path, draw: random.Random) -> None:
  """Another format under the name, or pixels of 10, 12, 14 or 16 bits."""
  with Image.open(file) as image:
    pixels = np.asarray(image.convert("L"))
  bits = draw.choice((8, 10, 12, 14, 16))
  if bits > 8:
    deep = pixels.astype(np.uint16) << (bits - 8)
    Image.fromarray(deep).save(file, format="png")
    return
  kinds = ["webp", "gif", "bmp", "tiff", "ico"]
  if features.check("avif"):
    kinds.append("avif")
  Image.fromarray(pixels).save(file, format=draw.choice(kinds))


def _edit_owners(file: Path, draw: random.Random) -> None:
  """A photograph with two owners, with none, or with one of an odd name."""
  lines = file.read_text().splitlines()
  place = draw.randrange(1, len(lines))
  photograph = lines[place].partition(",")[0]
  owner = draw.choice(["p0", "", " ", "p0|p1", "p0;p1", '"p0', "ε", DIGITS])
  lines.insert(place, f"{photograph},{owner}")
  if draw.random() < 0.5:
    del lines[place + 1]
  file.write_text("\n".join(lines))


def _edit_npz(file: Path, draw: random.Random) -> None:
  """Damages one member, whose checksum is made anew."""
  with zipfile.ZipFile(file) as old:
    members = {name: old.read(name) for name in old.namelist()}
  broken = draw.choice(sorted(members))
  members[broken] = damaged(members[broken], draw)
  with zipfile.ZipFile(file, "w") as new:
    for name, data in members.items():
      new.writestr(name, data)


def _edit_safetensors(file: Path, draw: random.Random) -> None:
  """Edits the header: its length, JSON of so many bytes, then the numbers."""
  data = file.read_bytes()
  (length,) = struct.unpack("<Q", data[:8])
  header = json.loads(data[8 : 8 + length])
  text = json.dumps(_edited_json(header, draw)).encode()
  numbers = data[8 + length :]
  file.write_bytes(struct.pack("<Q", len(text)) + text + numbers)


def _edit_parquet(file: Path, draw: random.Random) -> None:
  """Another column in the place of one, under its name or a telling one."""
  table = pq.read_table(file)
  n = len(table)
  place = draw.randrange(table.num_columns)
  name = draw.choice([table.column_names[place], "label", "other"])
  columns: list[Any] = [
    pa.nulls(n),
    ["ε"] * n,
    [None] + [1] * (n - 1),
    [[0.5]] * n,
    [2**62] * n,
    pa.array(["0", "1"] * (n // 2) + ["0"] * (n % 2)).dictionary_encode(),
    _shared_cell(pa.array([b"no image"], pa.binary()), n),
    _shared_cell(pa.array(["x".ljust(1 << 20, "x")]), n),
    _shared_cell(pa.array([bytes(1 << 26)], pa.binary()), n),
  ]
  column = draw.choice(columns)
  if isinstance(column, list):
    column = pa.array(column)
  changed = table.set_column(place, name, column)
  pq.write_table(changed, file, dictionary_pagesize_limit=1 << 30)


def _shared_cell(cell: pa.Array, n: int) -> pa.Array:
  """n rows that refer to one cell."""
  return pa.DictionaryArray.from_arrays(pa.array([0] * n), cell)


def _edited_json(value: Any, draw: random.Random) -> Any:
  """The same JSON, but for one value in it, or with one less."""
  is_leaf = not isinstance(value, dict | list) or not value
  if is_leaf or draw.random() < 0.1:
    return draw.choice(VALUES)
  keys: Any = sorted(value) if isinstance(value, dict) else range(len(value))
  key = draw.choice(keys)
  if draw.random() < 0.1:
    del value[key]
  else:
    value[key] = _edited_json(value[key], draw)
  return value


def _fit_digests(file: Path) -> None:
  """Makes the digests beside a file those of what it is now."""
  sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
  if file.with_name(INFO_FILE).is_file():
    _fit_cache_info(file, sha256)
  elif file.with_name("receipt.json").is_file():
    _fit_receipt(file, sha256)


def _fit_cache_info(file: Path, sha256: str) -> None:
  path = file.with_name(INFO_FILE)
  info = json.loads(path.read_bytes())
  for shard in info["shards"]:
    if shard["file"] == file.name:
      shard["sha256"] = sha256
      shard["bytes"] = file.stat().st_size
  public = dict(info)
  del public["shards"]
  del public["fingerprint"]
  info["fingerprint"] = sha256_of(public)
  path.write_text(json.dumps(info))


def _fit_receipt(file: Path, sha256: str) -> None:
  path = file.with_name("receipt.json")
  receipt = json.loads(path.read_bytes())
  if file.name == "head.safetensors":
    receipt["stated"]["weights_sha256"] = sha256
  elif file.name == "releases.safetensors":
    receipt["stated"]["releases_sha256"] = sha256
  path.write_text(json.dumps(receipt))
  file.with_name("README.md").write_text(render_card(receipt))
