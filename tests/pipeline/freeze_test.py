"""Nothing but what the mechanism releases depends on the private rows.

Every value that leaves is replaced by one that is a function of its name and
shape alone. Then all that is published or printed must be the same, byte for
byte, for data that have nothing in common but their public facts.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import os
import re
import stat
from typing import Any

import numpy as np
import pytest

from oneshot_dp.extract.cache.format import sha256_of
from oneshot_dp.linear_dp import private_sums
from oneshot_dp.pipeline import cli
from tests.sample_caches import DIM, write_clusters, write_rows

N = 200
"""Public; as many rows are not there where images were skipped."""
_RANDOM = re.compile(rb"\b([0-9a-f]{32}|(?<=charge )[0-9a-f]{12})\b")
_TIME = re.compile(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\+00:00)?)?")


def plain_rows(rng):
  """Four classes of one size, one row of each user."""
  x = rng.standard_normal((N, DIM)).astype("f4")
  x[np.arange(N), np.arange(N) % 4] += 3
  return x, np.arange(N) % 4, np.arange(N)


def odd_rows(rng):
  """One class, few rows, huge, tiny and zero ones, all of three users."""
  n = 57
  x = rng.standard_normal((n, DIM)) * 10.0 ** rng.integers(-30, 15, (n, 1))
  x[:5] = 0
  return x.astype("f4"), np.full(n, 2), np.arange(n) % 3


def frozen_at(self, turns, name, *arguments, **options):
  """A release that has nothing of the rows in it but public shapes."""
  estimate, sigma = release(self, name, *arguments, **options)
  said = name, estimate.shape, next(turns)
  seed = hashlib.sha256(repr(said).encode()).digest()
  estimate = 5 * np.random.default_rng([*seed]).standard_normal(estimate.shape)
  for key, (known, precision) in self.estimates.items():
    self.estimates[key] = 0 * known + 1.5, precision
  return estimate, sigma


release = private_sums.PrivateSums.release


COMMANDS = """
train --cache c --epsilon 2 --delta 1e-5 --out head
train --cache c --epsilon 4 --delta 1e-5 --from head --out head2
train --cache c --epsilon 2 --delta 1e-5 --head lamb --rows [:80%] --out part
sweep --cache c --eval-cache public --epsilons 1 4 --delta 1e-5\
 --head auto lamb --num-draws 2 --balanced --out run
sweep --cache c --eval-cache t --epsilons 1 --delta 1e-5 --private-eval 2\
 --out paid --json
evaluate part --cache t --private-eval 1 --delta 1e-5
evaluate head --cache public --json
train --cache c --epsilon 30 --delta 1e-5 --out refused
train --cache c --epsilon 3 --delta 1e-5 --out head
report run
report head
budget
budget --cache c --max-epsilon 50 --max-delta 1e-4
budget --cache c --json
inspect run --json
inspect head
verify head
export head --to exported
train --cache u --epsilon 2 --delta 1e-5 --ledger l2 --out units
sweep --cache u --eval-cache v --epsilons 2 --delta 1e-5 --private-eval 2\
 --head auto lamb --ledger l2 --out paid-units
budget --ledger l2
""".strip().splitlines()

REFUSED = (COMMANDS[8],)


def published(folder, make, seed, monkeypatch):
  """Runs all commands on such data; all that came out of them, by name."""
  folder.mkdir()
  monkeypatch.chdir(folder)
  monkeypatch.setenv("ONESHOT_DP_LEDGER", "ledger.sqlite")
  turn = functools.partialmethod(frozen_at, itertools.count())
  monkeypatch.setattr(private_sums.PrivateSums, "release", turn)
  rng = np.random.default_rng(seed)
  fields: dict[str, Any] = {"num_classes": 4, "shard_rows": N}
  for name, units, more in (
    ("c", False, {}),
    ("t", False, {"split": "test"}),
    ("u", True, {"dataset": "of users"}),
    ("v", True, {"dataset": "of others", "split": "test"}),
  ):
    x, y, unit = make(rng)
    fields["unit_id"] = unit if units else None
    info = write_rows(folder / name, x, y, **(fields | more)).info
    info = dataclasses.replace(info, source_num_examples=N)  # others: skipped
    (folder / name / "cache_info.json").write_bytes(info.to_json())
  write_clusters(folder / "public", (30,) * 4, seed=8, split="public")
  inputs = {*folder.iterdir()}
  found: dict[tuple[str, bool], tuple[int, bytes]] = {}
  for line in COMMANDS:
    out = io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
      status = cli.main(line.split())
    assert status == 2 * ("refused" in line or line in REFUSED), err.getvalue()
    for stream in out, err:
      found[line, stream is out] = status, stream.getvalue().encode()
  for path in sorted(folder.rglob("*")):
    private = "sqlite" in path.name or path.name == "l2"  # the ledgers
    if not private and not inputs & {path, *path.parents}:
      content = path.read_bytes() if path.is_file() else b""
      name = str(path.relative_to(folder)), False
      found[name] = stat.S_IMODE(path.stat().st_mode), content
  receipts = [json.loads(p.read_text()) for p in folder.rglob("receipt.json")]
  digests = [sha256_of(each).encode() for each in receipts]  # with a charge

  def without_random_ids(data):
    for digest in digests:
      data = data.replace(digest, b"RECEIPT")
    data = _RANDOM.sub(b"ID", data).replace(os.fsencode(folder), b"FOLDER")
    return _TIME.sub(b"TIME", data)

  return {k: (mode, without_random_ids(v)) for k, (mode, v) in found.items()}


@pytest.mark.long
def test_only_random_ids_differ(tmp_path, monkeypatch):
  one = published(tmp_path / "a", plain_rows, 1, monkeypatch)
  other = published(tmp_path / "b", odd_rows, 2, monkeypatch)
  assert one.keys() == other.keys()
  assert len(one) > 60 + 2 * len(COMMANDS)
  for name, (mode, a) in one.items():
    other_mode, b = other[name]
    assert mode == other_mode, name
    both = enumerate(zip(a, b, strict=False))
    at = next((i for i, (x, y) in both if x != y), 0)
    assert a == b, (name, a[at - 99 : at + 99], b[at - 99 : at + 99])
