"""Bad command lines and damaged files, as many as are wanted, by a seed.

`make` makes one of everything that a command reads. `spoilt` breaks a file of
it: its bytes, or what they mean (a value in JSON, a member of an npz), with the
digests beside it as they were or fitted anew. `nonsense` breaks the words.
"""

import contextlib
import dataclasses
import hashlib
import json
import re
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

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
inspect {digits}
inspect {head}
inspect {run}
inspect {ledger.sqlite}
demo --out {owners.csv}""".splitlines()
NONSENSE = """\
%s {} - -- () . .. /dev/null /dev/full /dev/zero 0 -1 nan inf 1e999 1e-320 ε
-0.0 1.5 0x10 1,2 2 no True auto lamb 18446744073709551616 [:80%] [80%:10%] ٣
[:0%] /(?P<who>[^/_]+) (?P<a> no.py:f"""
WORDS = ["", "\n", " ", "\x00", "\x1b[31m", "\udcff", "9" * 5000]
WORDS += re.findall(r"\S+", NONSENSE)
VALUES: Any = None, True, 0, -1, 1.5, 1e308, 2**70, "", "ε\0", [], {}, [[]]


def make(folder):
  """One of each thing, in a folder which is the current one."""
  image, label = (column[:40] for column in digits())
  np.savez("digits.npz", image=image, label=label, class_names=[*"0123456789"])
  pixels = [each[..., 0] for each in image]
  rows = {"label": [*map(int, label)], "who": [i // 4 for i in range(40)]}
  for kind in "tar", "parquet":
    write_table(folder / f"photos.{kind}", [*map(encode_png, pixels)], **rows)
  owners = ["file,who"]
  for i, each in enumerate(pixels):
    path = Path("photos", str(label[i]), f"{i}.{('png', 'jpg')[i % 2]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(each).save(path)
    owners.append(f"{label[i]}/{path.name},p{i // 4}")
  Path("owners.csv").write_text("\n".join(owners))
  glyph_vit = ROOT / "extract" / "backbones" / "glyph_vit.safetensors"
  shutil.copy(glyph_vit, "weights.safetensors")
  for seed, name in enumerate(("vectors", "test")):
    x, of_four = clusters((40,) * 4, 8, seed=seed)
    np.savez(f"{name}.npz", embedding=x, label=of_four)
  columns = {"embedding": [*x], "label": of_four, "who": np.arange(160) // 2}
  pq.write_table(pa.table(columns), "vectors.parquet")
  np.savez("start.npz", **{str(i): np.eye(8)[i] for i in range(4)})
  for line in SETUP.splitlines():
    assert main(line.split()) == 0, line


def nonsense(words, others, draw):
  """One to three words that are others, more, gone, or at another place."""
  for _ in range(draw.choice((1, 1, 2, 3))):
    if len(words) < 2 or words[0] not in COMMANDS:
      break
    fields = [f.name for f in dataclasses.fields(load_command(words[0]).Flags)]
    # Of --hosts, another room: a host waits for others.
    names = sorted({*fields, "json", "help"} - {"hosts"})
    flag = f"--{draw.choice(names).strip('_').replace('_', '-')}"
    at, other = draw.randrange(len(words)), draw.randrange(1, len(words))
    value = draw.choice(others if draw.random() < 0.2 else WORDS)
    match draw.randrange(5):
      case 0 | 1:
        words[other:other] = [flag, value]
      case 2:
        words[at] = value
      case 3:
        del words[other]
      case _:
        words[at], words[other] = words[other], words[at]
  return words


def spoilt(place, others, draw):
  """Breaks a file at this place, or below it; and were digests fitted to it?"""
  fits, files = False, [p for p in [place, *place.rglob("*")] if p.is_file()]
  file = draw.choice(sorted(files))
  match draw.randrange(10):
    case 0:
      file.unlink()
    case 1:
      file.unlink()
      odd = draw.choice(sorted(odd_files(place.parent / "odd").items()))[1]
      odd.rename(file)
    case 2:
      shutil.copy(draw.choice(others), file)
    case 3 | 4 | 5:
      file.write_bytes(damaged(file.read_bytes(), draw))
    case _:
      _edit(file, draw)
      fits = file.suffix == ".npz"  # whose members have sums
  fits |= draw.random() < 0.5
  with contextlib.suppress(Exception):  # what has no sense has no digest
    if fits and file.is_file() and file.stat().st_size < 1 << 30:
      _fit(file)
  return file, fits


def _edit(file, draw):
  """Changes what the bytes mean."""
  data = file.read_bytes()
  match file.suffix:
    case ".json":
      file.write_text(json.dumps(_other(json.loads(data), draw)))
    case ".npz":
      with zipfile.ZipFile(file) as old:
        members = {name: old.read(name) for name in old.namelist()}
      name = draw.choice(sorted(members))
      members[name] = damaged(members[name], draw)
      with zipfile.ZipFile(file, "w") as new:
        for member in members.items():
          new.writestr(*member)
    case ".safetensors":
      end = 8 + struct.unpack("<Q", data[:8])[0]
      said = json.dumps(_other(json.loads(data[8:end]), draw)).encode()
      file.write_bytes(struct.pack("<Q", len(said)) + said + data[end:])
    case ".parquet":
      table = pq.read_table(file)
      n, at = len(table), draw.randrange(table.num_columns)
      name = draw.choice([table.column_names[at], "label", "other"])
      kinds: list[Any] = [pa.nulls(n), ["ε"] * n, [None, *[1] * (n - 1)]]
      column = draw.choice([*kinds, [[0.5]] * n, [2**62] * n])
      pq.write_table(table.set_column(at, name, pa.array(column)), file)
    case _:
      file.write_bytes(damaged(data, draw))


def _other(value, draw):
  """The same JSON, but for one value in it, or with one less."""
  if not isinstance(value, dict | list) or not value or draw.random() < 0.1:
    return draw.choice(VALUES)
  some: Any = sorted(value) if isinstance(value, dict) else range(len(value))
  at = draw.choice(some)
  if draw.random() < 0.1:
    del value[at]
  else:
    value[at] = _other(value[at], draw)
  return value


def _fit(file):
  """Makes the digests beside a file those of what it is now."""
  sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
  info, receipt = file.with_name(INFO_FILE), file.with_name("receipt.json")
  if info.is_file():
    said = json.loads(info.read_bytes())
    for shard in said["shards"]:
      if shard["file"] == file.name:
        shard |= {"sha256": sha256, "bytes": file.stat().st_size}
    public = {n: said[n] for n in said if n not in ("shards", "fingerprint")}
    info.write_text(json.dumps(said | {"fingerprint": sha256_of(public)}))
  elif receipt.is_file():
    said = json.loads(receipt.read_bytes())
    if file.name in ("head.safetensors", "releases.safetensors"):
      of = {"head": "weights"}.get(file.stem, file.stem)
      said["stated"][f"{of}_sha256"] = sha256
    receipt.write_text(json.dumps(said))
    file.with_name("README.md").write_text(render_card(said))
