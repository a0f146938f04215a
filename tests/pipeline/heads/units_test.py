"""Heads whose guarantee is about users, from the npz to `verify`."""

import json
import pathlib
import re
import shutil
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.cache.verify import verify_cache
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.trainer import make_grid
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.importing.import_features import import_features
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.saved_head.check_receipt import problems
from oneshot_dp.pipeline.training.cache_rows import cache_rows
from oneshot_dp.pipeline.training.train_heads import (
  cache_ledger,
  make_plan,
  train_heads,
)
from tests.extract.caches import digest
from tests.pipeline.command_line import SWEEP, TRAIN, fails, succeeds
from tests.pipeline.sample_caches import CLASSES, DIM, write_clusters
from tests.pipeline.saved_head.receipt_test import changed, leaves

N = 200
# How many rows a user has: private, and in no output. 61 users at m = 3.
COUNTS = [30, 14, 98, *[1] * 58]
USED_AT_3 = 9 + 58


def arrays() -> dict[str, Any]:
  rng = np.random.default_rng(0)
  label = rng.integers(0, CLASSES, N)
  centres = rng.choice([-1.0, 1.0], (CLASSES, DIM))
  return {
    "embedding": (centres[label] + rng.standard_normal((N, DIM)) / 2).astype(
      np.float32
    ),
    "label": label,
    "unit_id": rng.permutation(np.repeat(np.arange(61) * 1_000_003, COUNTS)),
    "class_names": np.array(["0", "1", "2", "3"]),
  }


def others() -> dict[str, Any]:
  """Other rows, of the same classes and users."""
  given = arrays()
  return given | {"embedding": given["embedding"] + np.float32(0.01)}


@pytest.fixture(scope="module")
def npz(tmp_path_factory) -> pathlib.Path:
  path = tmp_path_factory.mktemp("npz") / "visits.npz"
  np.savez(path, **arrays())
  return path


@pytest.fixture(scope="module")
def users(npz, tmp_path_factory) -> FeatureCache:
  return import_features(
    npz,
    tmp_path_factory.mktemp("caches") / "users",
    unit_name="user",
    shard_rows=64,
  )


@pytest.fixture(scope="module")
def scored_on(tmp_path_factory) -> FeatureCache:
  """Examples of the same backbone and data set, with no users."""
  path = tmp_path_factory.mktemp("npz") / "visits.npz"
  np.savez(path, **{k: v for k, v in others().items() if k != "unit_id"})
  out = tmp_path_factory.mktemp("caches") / "test"
  return import_features(path, out, split="test")


@pytest.fixture
def user_argv(place, users, scored_on):
  """A command line on the cache of users."""

  def fill(command: str) -> list[str]:
    argv = [*place(command), "--cache", str(users.path)]
    if command == SWEEP:
      argv += ["--eval-cache", str(scored_on.path)]
    return argv

  return fill


def _units(cache: FeatureCache) -> np.ndarray:
  units = [b.unit_id for b in cache.blocks() if b.unit_id is not None]
  return np.concatenate(units)


def train(
  cache: FeatureCache,
  m: int | None,
  ledger_dir: pathlib.Path | None = None,
  **fields,
):
  privacy = PrivacyConfig(delta=1e-5, **fields)
  plan = make_plan((1.0,), privacy)
  (head,) = train_heads(
    cache,
    plan,
    HeadConfig(),
    privacy,
    max_rows_per_unit=m,
    ledger_dir=ledger_dir,
  )
  return head


class TestImport:
  def test_units_are_kept_across_shards(self, users):
    assert users.info.privacy_unit == "user"
    assert len(users.shards) == 4
    found = _units(users)
    np.testing.assert_array_equal(found, arrays()["unit_id"])
    assert verify_cache(users.path).ok

  def test_a_second_import_checks_the_units(self, npz, tmp_path):
    out = tmp_path / "c"
    import_features(npz, out, unit_name="user")
    before = digest(out)
    import_features(npz, out, unit_name="user")
    assert digest(out) == before
    with pytest.raises(InputError, match='privacy_unit is "user" there'):
      import_features(npz, out, unit_name="patient")
    other = arrays()
    other["unit_id"][7] += 1
    np.savez(tmp_path / "visits.npz", **other)
    with pytest.raises(InputError, match="holds other rows than the file"):
      import_features(tmp_path / "visits.npz", out, unit_name="user")

  def test_arrays_of_a_split(self, tmp_path):
    named = {f"train_{k}": v for k, v in arrays().items() if k != "class_names"}
    np.savez(tmp_path / "x.npz", **named)
    cache = import_features(
      tmp_path / "x.npz", tmp_path / "c", num_classes=4, unit_name="user"
    )
    found = _units(cache)
    np.testing.assert_array_equal(found, arrays()["unit_id"])

  @pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
      ({}, None, "name the unit with --unit-name"),
      (
        {"unit_id": None},
        "user",
        "no array user or unit_id .* present: class_names",
      ),
      ({}, "example", "must be a short public one"),
      ({"unit_id": np.zeros(N)}, "user", "unit_id is float64"),
      (
        {"unit_id": np.zeros(N - 1, int)},
        "user",
        r"unit_id is int64 \[199\]",
      ),
      (
        {"unit_id": np.full(N, 2**64 - 1, np.uint64)},
        "user",
        "unit_id has a number that is more than an int64",
      ),
    ],
  )
  def test_refusals(self, tmp_path, changes, name, message):
    given = {k: v for k, v in (arrays() | changes).items() if v is not None}
    np.savez(tmp_path / "x.npz", **given)
    with pytest.raises(InputError, match=message):
      import_features(tmp_path / "x.npz", tmp_path / "c", unit_name=name)
    assert not (tmp_path / "c").exists()

  @pytest.mark.parametrize("kind", [int, str])
  def test_the_array_may_have_the_name_of_the_unit(self, tmp_path, kind):
    given = arrays()
    owners = given.pop("unit_id")
    np.savez(tmp_path / "x.npz", **given, user=owners.astype(kind))
    cache = import_features(
      tmp_path / "x.npz", tmp_path / "c", unit_name="user"
    )
    found = np.concatenate([np.array(b.unit_id) for b in cache.blocks()])
    _, expected = np.unique(owners, return_inverse=True)
    _, first, same = np.unique(found, return_index=True, return_inverse=True)
    np.testing.assert_array_equal(expected[first][same], expected)
    assert len(first) == expected.max() + 1

  def test_by_command(self, npz, tmp_path, capsys):
    argv = ["import", npz, "--out", tmp_path / "c"]
    assert "name the unit with --unit-name" in fails(capsys, *argv)
    out, _ = succeeds(capsys, *argv, "--unit-name", "patient")
    assert "privacy unit          patient" in out


class TestBounds:
  @pytest.mark.parametrize("command", [TRAIN, SWEEP])
  def test_one_is_refused_where_there_are_none(
    self, place, train_cache, capsys, command
  ):
    line = fails(capsys, *place(command), "--max-rows-per-unit", 1)
    assert "--max-rows-per-unit=1, but the cache has no unit_id" in line
    assert cache_ledger(train_cache, None).entries() == []

  @pytest.mark.parametrize("m", ["0", "-1", "65537", "1.5"])
  def test_bad_numbers(self, user_argv, users, capsys, m):
    line = fails(capsys, *user_argv(TRAIN), "--max-rows-per-unit", m)
    assert m in line
    assert cache_ledger(users, None).entries() == []

  def test_the_grid_has_the_bound(self, users, train_cache):
    config = HeadConfig()
    found = [
      make_grid(cache_rows(users, 3), config),
      make_grid(cache_rows(users), config),
      make_grid(cache_rows(train_cache), config),
    ]
    assert [(g.clipped, g.rows_per_unit) for g in found] == [
      ("row", 3),
      ("unit", 1),
      ("row", 1),
    ]


class TestTraining:
  @pytest.mark.parametrize("m", [None, 1])
  def test_users_of_one_row_are_as_examples(self, tmp_path, m):
    """No two rows of a unit: the same gradient and the same noise."""
    plain = write_clusters(tmp_path / "a")
    given = write_clusters(tmp_path / "b")
    found = [np.concatenate(x) for x in zip(*_columns(given), strict=True)]
    np.savez(
      tmp_path / "x.npz",
      embedding=found[0],
      label=found[1],
      unit_id=np.arange(len(given)) * 5,
    )
    users = import_features(
      tmp_path / "x.npz", tmp_path / "c", num_classes=4, unit_name="user"
    )
    one = train(plain, None, noise_seed=1)
    other = train(users, m, tmp_path / "elsewhere", noise_seed=1)
    np.testing.assert_array_equal(one.head.kernel, other.head.kernel)
    assert one.statement == other.statement

  def test_the_noise_is_for_m_rows(self, users):
    one, three = train(users, 1), train(users, 3)
    ratio = three.statement.sensitivity / one.statement.sensitivity
    assert ratio == pytest.approx(3, rel=1e-4)
    whole = train(users, None)
    assert whole.statement.sensitivity == (one.statement.sensitivity)

  @pytest.mark.parametrize(
    ("bound", "stated"),
    [
      ([], "all are summed, and the sum of each is clipped as one vector"),
      (["--max-rows-per-unit", "3"], "at most 3 of each are summed"),
    ],
  )
  def test_how_many_rows_a_unit_has_is_nowhere(
    self, user_argv, users, capsys, tmp_path, ledger_dir, bound, stated
  ):
    said = "".join(succeeds(capsys, *user_argv(TRAIN), *bound))
    assert f"privacy unit: user; of its rows, {stated}" in said
    for file in [*(tmp_path / "out").glob("*.*"), *ledger_dir.glob("*")]:
      if file.suffix != ".safetensors":
        said += file.read_text()
    # The time of day is no count of rows, but may look like one.
    said = re.sub(r'"time":"[^"]*"', "", said)
    words = said.replace(",", " ").replace(":", " ").replace("}", " ").split()
    assert str(N) in words
    for private in (USED_AT_3, 61, 98, 30, 14):
      assert str(private) not in words

  @pytest.mark.parametrize("m", [None, 2])
  def test_a_sweep(self, user_argv, capsys, tmp_path, m):
    bound = ["--max-rows-per-unit", m] if m else []
    succeeds(capsys, *user_argv(SWEEP), *bound)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["max_rows_per_unit"] == m
    assert config["train_cache"]["privacy_unit"] == "user"
    heads = sorted((tmp_path / "out/heads").iterdir())
    assert len(heads) == 2
    for head in heads:
      succeeds(capsys, "verify", head)


def _columns(cache: FeatureCache):
  return [(block.embedding, block.label) for block in cache.blocks()]


class TestLedger:
  def test_the_unit_is_in_the_entry(self, users):
    train(users, 2)
    train(users, None)
    found = [
      (entry["privacy_unit"], entry["clipped"], entry["rows_per_unit"])
      for entry in cache_ledger(users, None).entries()
    ]
    assert found == [("user", "row", 2), ("user", "unit", 1)]

  def test_units_are_not_added_up(self, users, tmp_path, capsys):
    """An epsilon per example says nothing about a user."""
    plain = write_clusters(tmp_path / "p", dataset=users.info.dataset)
    train(plain, None)
    with pytest.raises(InputError, match="per user cannot be added to those"):
      train(users, 1)
    ledger = cache_ledger(users, None)
    assert len(ledger.entries()) == 1
    # Not even by whoever comes between the check and the charge.
    plan = make_plan((1.0,), PrivacyConfig(delta=1e-5))
    with pytest.raises(InputError, match="per user cannot be added to those"):
      _charge(ledger, plan, "user")
    _charge(ledger, plan, "example")
    assert len(ledger.entries()) == 2

  def test_other_bounds_of_one_unit_add_up(self, users, capsys):
    train(users, 1)
    train(users, None)
    out, _ = succeeds(capsys, "budget", "--cache", users.path)
    assert out.count("per user") == 2

  def test_noisy_counts_are_of_users(self, user_argv, users, capsys, tmp_path):
    said = "is about one example, and the heads are about one user"
    assert said in fails(capsys, *user_argv(SWEEP), "--private-eval", 1)
    assert cache_ledger(users, None).entries() == []
    succeeds(capsys, *user_argv(TRAIN))
    argv = ["evaluate", tmp_path / "out", "--cache"]
    other = tmp_path / "other.npz"
    np.savez(other, **others())
    test = import_features(other, tmp_path / "c", unit_name="user")
    budget = ["--private-eval", 1, "--delta", 1e-5]
    # Others, who have the same numbers.
    succeeds(capsys, *argv, test.path, "--not-trained-on")
    succeeds(capsys, *argv, test.path, *budget)
    entry = cache_ledger(test, None).entries()[-1]
    assert (entry["kind"], entry["privacy_unit"]) == ("evaluation", "user")

  def test_noisy_counts_are_not_added_to_releases_per_user(
    self, user_argv, users, scored_on, capsys, tmp_path
  ):
    succeeds(capsys, *user_argv(TRAIN), "--max-rows-per-unit", 1)
    argv = ["evaluate", tmp_path / "out", "--cache", scored_on.path]
    assert main([*map(str, argv), "--private-eval=1", "--delta=1e-5"]) == 2
    assert "per example cannot be added" in capsys.readouterr().err
    assert len(cache_ledger(users, None).entries()) == 1


def _charge(ledger: Ledger, plan, unit: str) -> None:
  ledger.charge(Charge.of_plan(plan, NoiseSource(), privacy_unit=unit))


@pytest.fixture(scope="module")
def of_three(users, tmp_path_factory) -> pathlib.Path:
  """A head for which at most three rows of a user are summed; to read only."""
  folder = tmp_path_factory.mktemp("head")
  argv = ["train", "--cache", users.path, "--epsilon", 1, "--delta", 1e-5]
  argv += [
    "--head",
    "lamb",
    "--max-rows-per-unit",
    3,
    "--ledger-dir",
    folder / "ledgers",
  ]
  assert main([*map(str, argv), "--out", str(folder / "head")]) == 0
  return folder / "head"


class TestReceipt:
  @pytest.fixture
  def head(self, of_three, tmp_path) -> pathlib.Path:
    return shutil.copytree(of_three, tmp_path / "head")

  @pytest.fixture
  def receipt(self, of_three):
    return json.loads((of_three / "receipt.json").read_text())

  def test_it_says_what_the_unit_is(self, head, receipt, capsys):
    assert receipt["privacy"]["privacy_unit"] == "user"
    assert receipt["mechanism"]["rows_per_unit"] == 3
    assert receipt["privacy"]["sensitivity_steps"] > 3 * 2**20 * 0.99
    assert not any("One row" in line for line in receipt["assumptions"])
    (line,) = [x for x in receipt["assumptions"] if "user" in x]
    assert "at most 3 of each" in line
    out, _ = succeeds(capsys, "verify", head)
    assert out.startswith("ok: the receipt's numbers follow from the noise")

  def test_of_a_clipped_unit(self, user_argv, capsys, tmp_path):
    succeeds(capsys, *user_argv(TRAIN))
    head = tmp_path / "out"
    out, _ = succeeds(capsys, "verify", head)
    assert out.startswith("ok: the receipt's numbers follow from the noise")
    receipt = json.loads((head / "receipt.json").read_text())
    assert receipt["mechanism"]["clipped"] == "unit"
    (line,) = [x for x in receipt["assumptions"] if "user" in x]
    assert "the sum of each is clipped as one vector" in line
    card = (head / "README.md").read_text()
    assert (
      "| privacy unit | user: the gradients of all its examples are clipped as"
      " one |"
    ) in card
    for value in ("row", "users", None):
      assert problems(changed(receipt, ("mechanism", "clipped"), value))
    for m in (2, 0):
      assert problems(changed(receipt, ("mechanism", "rows_per_unit"), m))
    forged = changed(receipt, ("privacy", "privacy_unit"), "example")
    found = problems(forged)
    assert "clipped is 'unit' and should be 'row'." in found

  def test_a_card_for_people(self, head):
    card = (head / "README.md").read_text()
    assert "when one user, with all its examples, is in the data or" in card
    assert "| privacy unit | user: at most 3 of its examples are used |" in card

  @pytest.mark.parametrize("relation", ["replace-one", "replace-special"])
  def test_other_relations(self, user_argv, capsys, tmp_path, relation):
    argv = [*user_argv(TRAIN), "--max-rows-per-unit", "2"]
    succeeds(capsys, *argv, "--neighboring-relation", relation)
    succeeds(capsys, "verify", tmp_path / "out")

  @pytest.mark.parametrize(
    ("path", "value"),
    [
      (("mechanism", "rows_per_unit"), 1),
      (("mechanism", "rows_per_unit"), 2),
      (("mechanism", "rows_per_unit"), 4),
      (("mechanism", "rows_per_unit"), 0),
      (("mechanism", "rows_per_unit"), None),
      (("mechanism", "rows_per_unit"), 3.0),
      (("mechanism", "clipped"), "unit"),
      (("privacy", "privacy_unit"), "example"),
      (("privacy", "privacy_unit"), "patient"),
      (("privacy", "privacy_unit"), ""),
      (("privacy", "privacy_unit"), None),
      (("assumptions",), []),
    ],
  )
  def test_a_change_is_reported(self, receipt, path, value):
    assert problems(receipt) == []
    assert problems(changed(receipt, path, value))

  def test_it_cannot_pass_for_one_of_examples(self, receipt, finished_sweep):
    """With every word of an honest one; its bound gives it away."""
    path = finished_sweep.path / "heads/epsilon-2-draw-1/receipt.json"
    honest = json.loads(path.read_text())["assumptions"]
    forged = changed(receipt, ("privacy", "privacy_unit"), "example")
    forged = changed(forged, ("assumptions",), honest)
    assert problems(forged) == ["rows_per_unit is 3 and should be 1."]

  def test_a_smaller_bound_does_not_pass_with_its_own_sensitivity(
    self, receipt
  ):
    """Whoever edits m has left the noise as it was, and so too much of it."""
    privacy = receipt["privacy"]
    forged = changed(receipt, ("mechanism", "rows_per_unit"), 6)
    forged = changed(
      forged,
      ("privacy", "sensitivity_steps"),
      2 * privacy["sensitivity_steps"],
    )
    assert any("this noise only gives" in line for line in problems(forged))

  def test_examples_have_a_bound_of_one(self, finished_sweep):
    path = finished_sweep.path / "heads/epsilon-2-draw-1/receipt.json"
    receipt = json.loads(path.read_text())
    assert receipt["mechanism"]["rows_per_unit"] == 1
    assert any("One row of the cache" in x for x in receipt["assumptions"])
    assert "per user" not in str(list(leaves(receipt)))
