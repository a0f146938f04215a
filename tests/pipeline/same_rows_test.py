"""Rows are known by what is in them, whatever they are called.

Through the command line: what is charged once is found again, and no head is
scored on, or centred by, the rows that it was trained on.
"""

import dataclasses
import json
import pathlib
import shutil
import zipfile

import numpy as np
import pytest
from PIL import Image

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.identity import refuse_another
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.extract.cache.summary import public_metadata
from oneshot_dp.extract.duplicates.shared_rows import count_shared_units
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.runs.evaluation import check_not_trained_on
from oneshot_dp.pipeline.runs.run import check_pair
from oneshot_dp.pipeline.saved_head.directory import read_head

N, D = 400, 8
BEFORE = pathlib.Path(__file__).parent / "saved_head/written_before/caches.zip"
JOB = """
from oneshot_dp.configs.extract_config import *
def get_config():
  return ExtractConfig(
    source=ImageFolderSource(root="photos"),
    split="all",
    backbone=BackboneConfig(name="random_patches"),
    preprocess=PreprocessConfig(image_size=8),
    batch_size=16,
    shard_rows=16,
  )
"""

IMAGES = """
from oneshot_dp.configs.extract_config import *
def get_config():
  return ExtractConfig(
    source=ArraysSource(path="photos.npz"),
    split="test",
    backbone=BackboneConfig(name="random_patches"),
  )
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch, no_pictures) -> pathlib.Path:
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.fixture
def run(capsys):
  """Runs a command line; what it said on stderr."""

  def run(command: str, status: int = 0) -> str:
    assert main(command.split()) == status
    return capsys.readouterr().err

  return run


def arrays(**changes) -> dict[str, np.ndarray]:
  rng = np.random.default_rng(0)
  return {
    "embedding": rng.standard_normal((N, D)).astype(np.float32),
    "label": rng.integers(0, 3, N),
  } | changes


@pytest.fixture
def imported(run):
  """Imports arrays as a cache, and gives its path."""

  def imported(name: str, of: dict[str, np.ndarray], flags: str = "") -> str:
    np.savez(f"{name}.npz", allow_pickle=False, **of)
    run(
      f"import {name}.npz --num-classes 3 --backbone-name net"
      f" --out caches/{name} {flags}"
    )
    return f"caches/{name}"

  return imported


@pytest.fixture
def train(run):
  def train(cache: str, status: int = 0, flags: str = "") -> str:
    name = cache.rpartition("/")[2]
    return run(
      f"train --cache {cache} --epsilon 1 --delta 1e-4 --head lamb"
      f" --out heads/{name} {flags}",
      status,
    )

  return train


def rows(of: dict[str, np.ndarray], part) -> dict[str, np.ndarray]:
  return {name: array[part] for name, array in of.items()}


ALL = arrays()
UNITS = {"unit_id": np.arange(N) // 2}
CHANGED = arrays()
CHANGED["embedding"][17] += 1
MORE = np.random.default_rng(9).standard_normal((3 * N, D)).astype(np.float32)
AGAIN = {
  "name": (ALL, ""),
  "split": (ALL, "--split test"),
  "order and labels": (
    rows(ALL, slice(None, None, -1)) | {"label": np.zeros(N, int)},
    "",
  ),
  "float16": (arrays(embedding=ALL["embedding"].astype(np.float16)), ""),
  "float64": (arrays(embedding=ALL["embedding"].astype(np.float64)), ""),
  "dtype of the cache": (ALL, "--embedding-dtype float16"),
  "bfloat16 of the cache": (ALL, "--embedding-dtype bfloat16"),
  "units": (ALL | UNITS, "--unit-name user"),
  "a subset": (rows(ALL, slice(200, 240)), ""),
  "one row of it": (rows(ALL, slice(7, 8)), ""),
  "a superset": (
    {
      "embedding": np.concatenate([MORE, ALL["embedding"]]),
      "label": np.zeros(4 * N, int),
    },
    "",
  ),
  "one row changed": (CHANGED, ""),
  "backbone": (ALL, "--backbone-name another"),
}


@pytest.mark.parametrize("how", AGAIN)
def test_what_was_charged_is_found_under_another_name(
  how, imported, train, ledger_dir
):
  train(imported("pets", ALL))
  again, flags = AGAIN[how]
  line = train(imported("cats", again, flags), 2)
  (pets,) = ledger_dir.glob("pets-*.jsonl")
  assert f"calls them 'cats', were charged to {pets.name} before" in line
  assert not Ledger("cats").entries()


@pytest.mark.parametrize("how", ["units", "split", "one row changed"])
def test_and_the_other_way_round(how, imported, train):
  """`unit_id` dropped, say."""
  again, flags = AGAIN[how]
  train(imported("pets", again, flags))
  line = train(imported("cats", ALL), 2)
  assert "calls them 'cats', were charged to pets-" in line


def test_other_rows_begin_their_own_ledger(imported, train):
  train(imported("pets", ALL))
  other = arrays(embedding=MORE[:N])
  assert "its first charge" in train(imported("cats", other))
  assert len(Ledger("cats").entries()) == 1
  # Rows of zeros are nobody's.
  zeros = arrays(embedding=np.zeros((N, D), np.float32))
  for name, count in (("none", N), ("nothing", N // 2)):
    train(imported(name, rows(zeros, slice(0, count))))


def test_another_folder_of_ledgers_is_doubted(imported, train, ledger_dir):
  cache = imported("pets", ALL)
  train(cache)
  line, *_ = (
    line
    for line in train(cache, flags="--out o --ledger-dir legders").splitlines()
    if line.startswith("warning: ")
  )
  (pets,) = ledger_dir.glob("pets-*.jsonl")
  assert f"{pets} is of 'pets', too" in line
  assert "do not count in legders; is --ledger-dir right?" in line


def test_baselines_and_counts_are_found_too(imported, train, run):
  pets, test = imported("pets", ALL), arrays(embedding=MORE[:N])
  scored = imported("test", test, "--split test")
  run(
    f"sweep --cache {pets} --eval-cache {scored} --epsilons 1 --delta 1e-4"
    " --private-eval 1 --out sweep"
  )
  # The rows that were counted belong to the ledger of the name "test".
  line = train(imported("cats", rows(test, slice(0, 5))), 2)
  assert "calls them 'cats', were charged to test-" in line
  # Whose labels were private once are not scored exactly later.
  line = run(f"evaluate sweep/heads/epsilon-1-draw-0 --cache {scored}", 2)
  assert "were charged to" in line


@pytest.fixture
def photographs(here) -> pathlib.Path:
  """Files of images in three classes."""
  rng = np.random.default_rng(3)
  (here / "job.py").write_text(JOB)
  for i in range(60):
    file = here / "photos" / "abc"[i % 3] / f"{i:03}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(file)
  return here / "photos"


def extract(run, root: pathlib.Path, out: str, flags: str = "") -> str:
  run(f"extract job.py --source.root {root} --out caches/{out} {flags}")
  return f"caches/{out}"


@pytest.mark.slow
@pytest.mark.parametrize(
  "flags",
  [
    "--preprocess.image-size 16",
    "--views 2",
    "--embedding-dtype float32",
  ],
)
def test_images_are_found_through_another_backbone(
  photographs, run, train, flags, here
):
  train(extract(run, photographs, "pets"))
  shutil.copytree(photographs, here / "cats")
  for i, file in enumerate(sorted((here / "cats").rglob("*.png"))):
    if i % 12:
      file.unlink()  # five of them, of every class, are enough
  line = train(extract(run, here / "cats", "cats", flags), 2)
  assert "calls them 'cats', were charged to photos-" in line


class TestFolders:
  @pytest.mark.parametrize("split", ["train", "test", "train[:80%]"])
  def test_only_one_name_is_of_all_images(self, photographs, run, split):
    line = run(f"extract job.py --split {split} --out caches/x", 2)
    assert "give --split all, or a part such as 'all[:80%]'" in line

  @pytest.mark.slow
  def test_parts_are_apart_and_every_image_is_in_one(
    self, photographs, run, here, train
  ):
    parts = [
      extract(run, photographs, name, f"--split {split}")
      for name, split in [("most", "all[:70%]"), ("rest", "all[70%:]")]
    ]
    most, rest = map(open_cache, parts)
    ids = [
      {int(i) for block in cache.blocks() for i in block.example_id}
      for cache in (most, rest)
    ]
    assert ids[0] | ids[1] == set(range(60))
    assert not ids[0] & ids[1]
    assert 30 <= len(ids[0]) <= 54
    for part in parts:
      run(f"verify {part}")
    train(parts[0])
    run(f"evaluate heads/most --cache {parts[1]}")
    line = run(f"evaluate heads/most --cache {parts[0]}", 2)
    assert "may hold training rows" in line
    # One image less moves no other.
    (photographs / "a" / "000.png").unlink()
    again = open_cache(extract(run, photographs, "again", "--split all[:70%]"))
    names = sorted(p.name for p in photographs.rglob("*.png"))
    assert len(names) == 59
    assert len(most) - len(again) == (0 in ids[0])


class TestScores:
  """Training rows under another split's name are not scored."""

  @pytest.fixture
  def pair(self, imported) -> tuple[str, str]:
    return (
      imported("pets", ALL),
      imported("test", rows(ALL, slice(0, 61)), "--split test"),
    )

  @pytest.mark.parametrize(
    "words",
    [
      "sweep --epsilons 1",
      "sweep --epsilons 1 --private-eval 1",
      "compare --epsilons 1 --heads lamb",
      "figures --epsilons 1",
      "ablate --epsilon 1 --axes epochs --epochs 2",
    ],
  )
  def test_of_a_run(self, pair, run, words):
    train, test = pair
    delta = "" if words.startswith("figures") else "--delta 1e-4"
    line = run(
      f"{words} --cache {train} --eval-cache {test} {delta} --out out", 2
    )
    assert f"61 of the 61 rows of {test} are rows of {train}" in line
    assert not Ledger("pets").entries()

  def test_the_same_file_with_another_split(self, here, imported, run):
    train = imported("pets", ALL)
    run(
      "import pets.npz --split test --num-classes 3"
      " --backbone-name net --out caches/test"
    )
    line = run(
      f"sweep --cache {train} --eval-cache caches/test --epsilons 1"
      " --delta 1e-4 --out out",
      2,
    )
    assert f"{N} of the {N} rows of caches/test are rows of {train}" in line

  def test_of_a_head_by_its_ledger(self, pair, run, train, imported):
    cache, test = pair
    train(cache)
    line = run(f"evaluate heads/pets --cache {test}", 2)
    assert "at least 61 of the 61 rows of caches/test were charged to" in line
    other = imported("new", arrays(embedding=MORE[:N]), "--split test")
    assert "warning" not in run(f"evaluate heads/pets --cache {other}")
    # Without its ledger only names are left.
    unsure = f"evaluate heads/pets --cache {test} --ledger-dir elsewhere"
    said = run(unsure, 2)
    assert "nobody can tell here if rows of caches/test trained this" in said
    assert "elsewhere/pets-" in said
    run(f"{unsure} --not-trained-on")

  @pytest.mark.parametrize("charged", ["trained", "counted"])
  def test_private_rows_of_any_ledger_are_not_public(
    self, charged, run, train, imported
  ):
    """Not to be scored exactly, nor to map others by, whatever charged them."""
    train(imported("pets", ALL))
    secret = imported("secret", arrays(embedding=MORE[:N]))
    if charged == "trained":
      train(secret)
    else:
      run(f"evaluate heads/pets --cache {secret} --private-eval 1 --delta 1e-4")
    where = f"at least {N} of the {N} rows of {secret} were charged to"
    assert where in run(f"evaluate heads/pets --cache {secret}", 2)
    third = imported("third", arrays(embedding=MORE[N : 2 * N]))
    sweep = f"sweep --epsilons 1 --delta 1e-4 --cache {third} --out out"
    assert where in run(f"{sweep} --eval-cache {secret}", 2)
    assert where in train(third, 2, f"--public-cache {secret}")

  def test_public_rows(self, pair, run, train, imported):
    cache, _ = pair
    few = arrays(
      embedding=np.concatenate([MORE[: N - 3], ALL["embedding"][:3]])
    )
    public = imported("public", few)
    line = train(cache, 2, f"--public-cache {public}")
    assert f"3 of the {N} rows of {public} are rows of {cache}" in line
    train(
      cache, 0, f"--public-cache {imported('p', arrays(embedding=MORE[:N]))}"
    )


class TestPartsOfArrays:
  def test_of_one_file(self, here, run):
    np.savez("pets.npz", allow_pickle=False, **ALL)
    for name, split in [("most", "train[:80%]"), ("rest", "train[80%:]")]:
      run(
        f"import pets.npz --split {split} --num-classes 3"
        f" --backbone-name net --out caches/{name}"
      )
    most, rest = (open_cache(f"caches/{name}") for name in ("most", "rest"))
    assert len(most) + len(rest) == N
    assert 280 < len(most) < 360
    check_pair(most, rest)

  @pytest.mark.slow
  @pytest.mark.parametrize(
    "flags",
    [
      "lamb",
      "whitened",
      "multi-step --steps.batch-size 50 --steps.sampling poisson",
      "multi-step --steps.batch-size 50 --steps.sampling partition",
    ],
  )
  def test_n_is_the_split_s_whatever_is_in_the_part(self, flags, imported, run):
    """A row's bytes say if it is in the part, and n must not say it on."""
    line = f"train --epsilon 8 --delta 1e-4 --head {flags} --noise-seed 1"
    for name, split in (("whole", "train"), ("part", "train[:50%]")):
      cache = open_cache(
        imported(name, ALL, f"--split {split} --dataset-name pets")
      )
      run(f"{line} --cache {cache.path} --out heads/{name}")
      data = read_head(pathlib.Path("heads") / name).receipt["data"]
      assert data["num_examples"] == N // (1 + cache.info.is_part)
      run(f"verify heads/{name} --ledger-dir ledgers-of-others")
    assert len(cache) != N // 2
    assert "num_skipped" not in public_metadata(cache)
    assert public_metadata(cache)["num_examples"] == N // 2

  def test_a_row_less_moves_no_other(self, here, run, imported):
    flags = "--split train[:50%]"
    ids = []
    for name, part in (("a", slice(None)), ("b", slice(1, None))):
      of = rows(ALL | {"example_id": np.arange(N)}, part)
      cache = open_cache(imported(name, of, flags))
      ids.append({int(i) for b in cache.blocks() for i in b.example_id})
    assert ids[0] - {0} == ids[1]


OF_USERS = "--unit-name user --dataset-name pets"


class TestUnits:
  """No row of a unit is scored exactly beside those that were trained on."""

  WHOSE = np.arange(N) // 8

  @pytest.fixture
  def of(self, imported):
    """Imports some of the rows, whose users they say."""

    def of(name: str, part, flags: str = OF_USERS, **changes) -> str:
      owned = arrays(unit_id=self.WHOSE) | changes
      return imported(name, rows(owned, part), flags)

    return of

  def test_parts_of_one_file_have_no_unit_in_common(self, of, run):
    names = {"most": "train[:70%]", "rest": "train[70%:]"}
    most, rest = (
      open_cache(of(name, slice(None), f"{OF_USERS} --split {split}"))
      for name, split in names.items()
    )
    assert len(most) + len(rest) == N
    assert min(len(most), len(rest)) > N // 8
    assert count_shared_units(rest, most) == 0
    check_pair(most, rest)
    run("train --cache caches/most --epsilon 8 --delta 1e-4 --out head")
    run("evaluate head --cache caches/rest")
    # Made when parts went by the row: another cache, which still opens.
    info = most.info
    assert info.to_json()["parts_by"] == "unit"
    before = dataclasses.replace(info, parts_by=None)
    assert "parts_by" not in before.to_json()
    assert CacheInfo.from_json(before.to_json()) == before
    assert before.fingerprint != info.fingerprint
    with pytest.raises(InputError, match='parts_by is "absent" there and'):
      refuse_another(most.path, before.to_json(), info.to_json())
    old = dataclasses.replace(
      rest, info=dataclasses.replace(rest.info, parts_by=None)
    )
    with pytest.raises(InputError, match="not made of whole users"):
      check_not_trained_on(Ledger("pets"), old, insisted=False)
    check_not_trained_on(Ledger("pets"), old, insisted=True)

  def test_other_rows_of_a_unit_are_not_scored(self, of, run, train):
    cache = of("pets", slice(0, N, 2))
    run(f"train --cache {cache} --epsilon 8 --delta 1e-4 --out head")
    others = of("others", slice(1, N, 2), f"{OF_USERS} --split test")
    sweep = f"--cache {cache} --epsilons 1 --delta 1e-4 --out s --eval-cache"
    said = run(f"sweep {sweep} {others}", 2)
    assert f"50 of the users of {others} are in {cache}, too" in said
    said = run(f"evaluate head --cache {others}", 2)
    assert f"50 of the users of {others} are in {Ledger('pets').path}" in said
    # Of another data set they are the same, or whoever asks knows better.
    away = of("away", slice(1, N, 2), "--unit-name user")
    said = run(f"evaluate head --cache {away}", 2)
    assert "or say --not-trained-on, if they are others" in said
    run(f"evaluate head --cache {away} --not-trained-on")
    said = run(f"evaluate head --cache {others} --not-trained-on", 2)
    assert "50 of the users of" in said
    test = f"{OF_USERS} --split test"
    apart = of("apart", slice(1, N, 2), test, unit_id=self.WHOSE + N)
    for cache in (apart, of("p", slice(1, N, 2), "--unit-name patient")):
      run(f"evaluate head --cache {cache}")
    budget = "--private-eval 1 --delta 1e-4"
    run(f"evaluate head --cache {others} {budget}")


class TestWrittenBefore:
  """Caches and ledgers of format 1, which have no keys."""

  @pytest.fixture(autouse=True)
  def before(self, here):
    with zipfile.ZipFile(BEFORE) as archive:
      archive.extractall(here)

  def test_a_cache_opens_and_its_rows_are_known(self, here, run, train):
    run("verify cache")
    run(
      "import pets.npz --split test --num-classes 3"
      " --backbone-name net --out again"
    )
    with pytest.raises(InputError, match="40 of the 40 rows of again are rows"):
      check_pair(open_cache("cache"), open_cache("again"))
    run("train --cache cache --epsilon 1 --delta 1e-3 --out new")
    shutil.copy("pets.npz", "cats.npz")
    run("import cats.npz --num-classes 3 --backbone-name net --out c")
    assert "calls them 'cats', were charged to pets-" in train("c", 2)

  def test_a_ledger_still_knows_the_very_rows(self, run, train):
    shutil.copy("pets.npz", "cats.npz")
    run("import cats.npz --num-classes 3 --backbone-name net --out c")
    line = train("c", 2, "--ledger-dir ledgers")
    assert "calls them 'cats', were charged to pets-" in line

  def test_without_keys_it_says_what_it_cannot_tell(self, run):
    run(
      "import pets.npz --split test --num-classes 3"
      " --backbone-name net --out test"
    )
    said = run("evaluate head --cache test --ledger-dir ledgers", 2)
    assert "does not know all rows of 'pets'" in said

  @pytest.mark.slow  # its rows have bits that XLA does not make in a hurry
  def test_images_too(self, here, run):
    pathlib.Path("job.py").write_text(IMAGES)
    run("extract job.py --out again")
    again, before = open_cache("again"), open_cache("photos")
    assert next(again.key_blocks()).shape == (12, 2, 2)
    assert next(before.key_blocks()).shape == (12, 1, 2)
    # A processor that rounds an embedding otherwise makes another key of it.
    some = r"([6-9]|1[0-2]) of the 12 rows of again are rows"
    with pytest.raises(InputError, match=some):
      check_pair(before, again)


def test_keys_stay_where_they_are(here, imported, train, run, capsys):
  """For the owner only, and in nothing that is printed or written."""
  cache = open_cache(imported("pets", ALL))
  train("caches/pets")
  for file in [*cache.path.iterdir(), *Ledger("pets").path.parent.iterdir()]:
    assert file.stat().st_mode & 0o777 == 0o600, file
  (entry,) = Ledger("pets").entries()
  assert main(["budget", "--cache", "caches/pets", "--json"]) == 0
  said = capsys.readouterr().out
  assert "row_keys" not in said
  assert entry["row_keys"] not in said
  head = b"".join(p.read_bytes() for p in (here / "heads/pets").iterdir())
  first = next(cache.key_blocks())[0, 0]
  for secret in (entry["row_keys"][:12].encode(), first[:1].tobytes()):
    assert secret not in head
  assert json.loads((here / "heads/pets/receipt.json").read_text())
