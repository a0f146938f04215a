"""`--public-cache`, from the command line to `verify`."""

import csv
import dataclasses
import functools
import json
import pathlib
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.backbones.registry import RANDOM_PATCHES, backbone_names
from oneshot_dp.extract.cache.checked_rows import Rows
from oneshot_dp.extract.cache.identity import BackboneIdentity
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.cache.verify import stored_norm
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.chosen import ChoosingTrainer
from oneshot_dp.linear_dp.heads.registry import make_trainer
from oneshot_dp.linear_dp.heads.whitened import training as whitened
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.trainer import TrainedHead
from oneshot_dp.pipeline.importing.import_features import import_features
from oneshot_dp.pipeline.runs.evaluation import evaluate_on_public_labels
from oneshot_dp.pipeline.saved_head.check_receipt import problems
from oneshot_dp.pipeline.saved_head.directory import read_head, write_head
from oneshot_dp.pipeline.saved_head.public_record import ASSUMPTION, SETTING
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.cache_rows import cache_rows
from oneshot_dp.pipeline.training.public_rows import (
  NON_NEGATIVE,
  PublicRows,
  choosing_trainer,
)
from oneshot_dp.pipeline.training.train_heads import (
  Training,
  cache_ledger,
  cache_trainer,
  plan_heads,
  train_all,
  train_heads,
)
from tests.pipeline.command_line import SWEEP, TRAIN, fails, succeeds
from tests.pipeline.sample_caches import (
  CLASSES,
  DIM,
  write_clusters,
  write_rows,
)
from tests.pipeline.saved_head.receipt_test import MISSING, changed

OFFSET = 40.0
"""Added to every feature: what all rows share is most of each."""
COMPARE = (
  "compare --cache {train} --eval-cache {eval} --epsilons 1 --delta 1e-5"
  " --heads lamb whitened --baseline --out {out}"
)
QUICK_COMPARE = COMPARE.replace("lamb whitened --baseline", "lamb")
USES = ("mean", "mean-and-covariance")


def shifted(out: pathlib.Path, rows: int, seed: int, **changes: Any):
  """Clusters in one place of the space, with features of several sizes."""
  rng = np.random.default_rng(seed)
  centres = np.random.default_rng(5).choice([-1.0, 1.0], (CLASSES, DIM))
  label = rng.integers(0, CLASSES, rows)
  embedding = centres[label] + 0.3 * rng.standard_normal((rows, DIM))
  return write_rows(
    out,
    Rows(
      embedding=(OFFSET + embedding).astype(np.float32),
      label=label,
      example_id=np.arange(rows),
    ),
    embedding_dtype="float32",
    **changes,
  )


@pytest.fixture(scope="module", autouse=True)
def little_work():
  """Few steps."""
  with pytest.MonkeyPatch.context() as patch:
    few = functools.partial(WhiteningRule, num_steps=4)
    patch.setattr(whitened, "WhiteningRule", few)
    yield


@dataclasses.dataclass(frozen=True, kw_only=True)
class Caches:
  train: FeatureCache
  eval: FeatureCache
  public: FeatureCache


@pytest.fixture(scope="module")
def caches(tmp_path_factory) -> Caches:
  folder = tmp_path_factory.mktemp("shifted")
  return Caches(
    train=shifted(folder / "train", 300, 1),
    eval=shifted(folder / "test", 200, 2, split="test"),
    public=shifted(folder / "public", 150, 3, dataset="wild animals"),
  )


@pytest.fixture
def fill(caches, tmp_path):
  """Puts the paths of this test into a command line."""

  def filled(command: str, *more: object) -> list[str]:
    text = command.format(
      train=caches.train.path, eval=caches.eval.path, out=tmp_path / "out"
    )
    return [*text.split(), *map(str, more)]

  return filled


def trained(caches: Caches, config: HeadConfig, **options: Any) -> TrainedHead:
  privacy = PrivacyConfig(delta=1e-5)
  plan = plan_heads(config, len(caches.train), (8.0,), privacy)
  asked: dict[str, Any] = {"ledger_dir": None} | options
  (head,) = train_heads(caches.train, plan, config, privacy, **asked)
  return head


def top1(head: LinearHead, cache: FeatureCache) -> float:
  (accuracy,) = evaluate_on_public_labels([head], cache).scores
  return accuracy.top1


class TestTraining:
  @pytest.mark.parametrize(
    ("head", "used"), [("lamb", USES[0]), ("momentum", USES[1])]
  )
  def test_centring_tells_classes_apart(self, caches, head, used):
    """Where the features of all rows are of one sign."""
    public = PublicRows.read(caches.public.path, caches.train, used)
    config = HeadConfig(head=head)
    found = trained(caches, config, public=public)
    assert top1(found.head, caches.eval) > 0.9
    assert top1(trained(caches, config).head, caches.eval) < 0.7

  @pytest.mark.parametrize(
    ("head", "used"), [("lamb", USES[1]), ("whitened", USES[0])]
  )
  def test_a_head_is_of_rows_as_they_are(self, caches, head, used):
    """Against the head of mapped rows, trained by the same noise."""
    public = PublicRows.read(caches.public.path, caches.train, used)
    privacy = PrivacyConfig(delta=1e-5, noise_seed=4)
    config = HeadConfig(head=head)
    plan = plan_heads(config, len(caches.train), (8.0,), privacy)
    mapped = public.mapped(cache_rows(caches.train))
    inside, outside = (
      train_all(
        caches.train,
        [Training(trainer=trainer, plan=plan)],
        privacy,
        ledger_dir=None,
      )[0].head
      for trainer in (
        make_trainer(mapped, [config]),
        cache_trainer(caches.train, [config], public=public),
      )
    )
    for block in caches.eval.blocks():
      z = public.statistics.mapped(block.embedding)
      logits = np.asarray(inside.logits(jnp.asarray(z)))
      assert np.ptp(logits) > 0.1
      np.testing.assert_allclose(
        outside.logits(jnp.asarray(block.embedding)),
        logits,
        atol=2e-3 * np.ptp(logits),
      )

  def test_nothing_is_spent_on_a_mean_that_is_public(self, caches, tmp_path):
    public = PublicRows.read(caches.public.path, caches.train)
    config = HeadConfig(head="whitened")
    for rows, centres in ((public, False), (None, True)):
      head = trained(caches, config, public=rows)
      said = head.mechanism.as_json()
      assert said["centres"] == head.head.unit_norm == centres
      assert (said["mean_noise_multiplier"] is not None) == centres
      folder = tmp_path / f"head{centres}"
      write_head(folder, head, caches.train.info)
      assert verify_head(folder).problems == ()
      assert read_head(folder).head.unit_norm == centres
    with pytest.raises(InputError, match="at norm 1 cannot be folded"):
      public.statistics.folded(head.head)

  @pytest.mark.parametrize("used", USES)
  def test_a_row_is_the_same_bits_in_a_neighbouring_cache(
    self, caches, tmp_path, used
  ):
    """Where it comes in other blocks, at other places."""
    public = PublicRows.read(caches.public.path, caches.train, used)
    rng = np.random.default_rng(0)
    embedding = (OFFSET + rng.standard_normal((90, DIM))).astype(np.float32)

    def mapped(ids: np.ndarray, shard_rows: int) -> dict[int, bytes]:
      cache = write_rows(
        tmp_path / f"of{len(ids)}",
        Rows(
          embedding=embedding[ids],
          label=ids % CLASSES,
          example_id=np.arange(len(ids)),
        ),
        embedding_dtype="float32",
        shard_rows=shard_rows,
      )
      return {
        int(ids[example_id]): row.tobytes() + norm.tobytes()
        for block in public.mapped(cache_rows(cache)).blocks()
        for example_id, row, norm in zip(
          block.example_id, block.embedding, block.embedding_norm, strict=True
        )
      }

    everyone = mapped(np.arange(90), 64)
    others = mapped(np.delete(np.arange(90), 17), 7)
    del everyone[17]
    assert others == everyone

  def test_the_view_is_the_same_rows_of_the_same_units(self, tmp_path, caches):
    rng = np.random.default_rng(0)
    units = write_rows(
      tmp_path / "units",
      Rows(
        embedding=rng.standard_normal((30, DIM)).astype(np.float32),
        label=np.arange(30) % CLASSES,
        example_id=np.arange(30),
        unit_id=np.arange(30) // 3,
      ),
      privacy_unit="user",
      embedding_dtype="float32",
    )
    public = PublicRows.read(caches.public.path, units)
    rows = public.mapped(cache_rows(units))
    assert rows.num_examples == 30
    (mapped,), (block,) = rows.blocks(), units.blocks()
    for column in ("label", "example_id", "unit_id"):
      np.testing.assert_array_equal(
        getattr(mapped, column), getattr(block, column)
      )
    np.testing.assert_array_equal(
      mapped.embedding_norm, stored_norm(mapped.embedding)
    )
    own = dataclasses.replace(caches, train=units)
    head = trained(own, HeadConfig(), public=public)
    assert head.mechanism.as_json()["clipped"] == "unit"


class TestCommands:
  @pytest.mark.parametrize(
    ("flags", "used"),
    [((), USES[0]), (("--public-statistics", USES[1]), USES[1])],
  )
  def test_train(self, fill, caches, capsys, tmp_path, flags, used):
    argv = fill(TRAIN, "--public-cache", caches.public.path, *flags)
    succeeds(capsys, *argv)
    out, _ = succeeds(capsys, "verify", tmp_path / "out")
    assert "says that these very bytes" in out
    receipt = read_head(tmp_path / "out").receipt
    assert receipt["training"][SETTING] == {
      "dataset": "wild animals",
      "dataset_version": "3.2.0",
      "split": "train",
      "num_examples": 150,
      "cache_fingerprint": caches.public.fingerprint,
      "used": used,
      "ridge": None
      if used == "mean"
      else "10 times the mean variance of a feature",
    }
    assert receipt["assumptions"][-1] == ASSUMPTION
    card = (tmp_path / "out/README.md").read_text()
    assert ASSUMPTION in card
    (line,) = re.findall(r"\| public statistics \| (.*) \|", card)
    done = "centred" if used == "mean" else "centred and whitened"
    assert line.startswith(f"embeddings {done} by the mean")
    assert "the 150 public rows of wild animals, split `train`" in line

  @pytest.mark.parametrize("command", [SWEEP, COMPARE])
  def test_many(self, fill, caches, capsys, tmp_path, command):
    flags = ("--public-cache", caches.public.path, "--baseline")
    succeeds(capsys, *fill(command, *flags))
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["public_cache"]["fingerprint"] == caches.public.fingerprint
    assert config[SETTING] == "mean"
    with (tmp_path / "out/results.csv").open(newline="") as file:
      lines = list(csv.DictReader(file))
    assert len(lines) == 3
    for line in lines:
      folder = tmp_path / "out" / line["path"]
      assert read_head(folder).receipt["training"][SETTING]["used"] == "mean"
      assert verify_head(folder).problems == ()
      argv = ("evaluate", folder, "--cache", caches.eval.path, "--json")
      out, _ = succeeds(capsys, *argv)
      assert json.loads(out)["top1"] == float(line["top1"])
      if line["private"] == "False":
        assert float(line["top1"]) > 0.95

  def test_auto_is_what_it_is_without_one(self, fill, caches, capsys, tmp_path):
    argv = fill(TRAIN, "--head", "auto", "--public-cache", caches.public.path)
    _, err = succeeds(capsys, *argv)
    (said,) = [line for line in err.splitlines() if line.startswith("head: ")]
    head = said.split()[1].rstrip(",").replace("auto", "whitened")
    training = read_head(tmp_path / "out").receipt["training"]
    assert training["head"] == head
    assert SETTING in training


OTHER = BackboneIdentity(name="vit_b16", layer="cls")


class TestRefusals:
  @pytest.mark.parametrize(
    ("rows", "changes", "said"),
    [
      ((20, 0), {"backbone": OTHER}, "extract both with the same backbone"),
      ((20, 0), {"dataset": "pets"}, "is of the private data set 'pets'"),
      (
        (20, 0),
        {"dataset": "Pets", "split": "test"},
        "is of the private data set 'Pets'",
      ),
      ((300, 1), {}, "300 of the 300 rows of"),  # the same by another name
    ],
  )
  def test_public_rows_that_are_none(
    self, fill, capsys, caches, tmp_path, rows, changes, said
  ):
    other = shifted(tmp_path / "x", *rows, **{"dataset": "a"} | changes)
    line = fails(capsys, *fill(TRAIN, "--public-cache", other.path))
    assert said in line
    assert cache_ledger(caches.train, None).entries() == []

  def test_statistics_of_nothing(self, fill, capsys, caches):
    argv = fill(TRAIN, "--public-statistics", "mean")
    line = fails(capsys, *argv)
    assert "--public-statistics='mean' are taken from a public cache" in line
    assert cache_ledger(caches.train, None).entries() == []

  def test_other_classes_and_units_are_fine(self, caches, tmp_path):
    rows = Rows(
      embedding=np.ones((8, DIM), np.float32),
      label=np.zeros(8, int),
      example_id=np.arange(8),
      unit_id=np.zeros(8, int),
    )
    names: dict[str, Any] = {"class_names": tuple("abcdefg"), "dataset": "a"}
    other = write_rows(tmp_path / "x", rows, privacy_unit="user", **names)
    PublicRows.read(other.path, caches.train)


@pytest.fixture(scope="module")
def receipt(caches, tmp_path_factory) -> dict[str, Any]:
  folder = tmp_path_factory.mktemp("public")
  public = PublicRows.read(caches.public.path, caches.train, USES[1])
  head = trained(caches, HeadConfig(), public=public, ledger_dir=folder)
  return write_head(folder / "head", head, caches.train.info)


class TestReceipt:
  def test_the_assumption_is_there_if_and_only_if_the_setting_is(self, receipt):
    assert problems(receipt) == []
    lines = receipt["assumptions"]
    for other in (lines[:-1], [*lines, lines[-1]]):
      (problem,) = problems(receipt | {"assumptions": other})
      assert problem.startswith("assumptions is")
    settings = {k: v for k, v in receipt["training"].items() if k != SETTING}
    bare = receipt | {"training": settings}
    assert any(p.startswith("assumptions is") for p in problems(bare))
    assert problems(bare | {"assumptions": lines[:-1]}) == []

  @pytest.mark.parametrize(
    ("field", "values"),
    [
      ("ridge", [None, "none", MISSING]),
      ("used", ["mean", "labels", MISSING]),
      ("dataset", ["pets", "PETS", MISSING]),
      ("num_examples", [0, "many", MISSING]),
      ("split", [MISSING]),
    ],
  )
  def test_a_fact_that_cannot_be_or_is_missing(self, receipt, field, values):
    for value in values:
      assert problems(changed(receipt, ("training", SETTING, field), value))


@pytest.fixture(scope="module")
def relu(tmp_path_factory) -> Caches:
  folder = tmp_path_factory.mktemp("relu")
  own: dict[str, Any] = {"backbone": BackboneIdentity(name="bit_r50x1")}
  return Caches(
    train=write_clusters(folder / "train", **own),
    eval=write_clusters(folder / "test", (20,) * 4, split="test", **own),
    public=write_clusters(folder / "p", (9, 9, 9, 9), dataset="a", **own),
  )


def warnings_of(err: str) -> list[str]:
  return [x for x in err.splitlines() if x.startswith("warning: ")]


class TestWarning:
  @pytest.mark.parametrize("command", [TRAIN, QUICK_COMPARE])
  def test_non_negative_embeddings(self, relu, tmp_path, capsys, command):
    def run(*more: object) -> list[str]:
      text = command.format(
        train=relu.train.path,
        eval=relu.eval.path,
        out=tmp_path / f"out{len(more)}",
      )
      _, err = succeeds(capsys, *text.split(), *more)
      return warnings_of(err)

    (warning,) = run()
    assert warning.startswith("warning: embeddings of bit_r50x1 are non-neg")
    assert warning.endswith("centre them with --public-cache.")
    if command == TRAIN:
      assert run("--public-cache", relu.public.path) == []

  def test_the_rows_are_never_asked(self, fill, capsys, caches, tmp_path):
    """Rows of ours are all positive, and their backbone is none of those."""
    assert all((b.embedding > 0).all() for b in caches.train.blocks())
    _, err = succeeds(capsys, *fill(TRAIN))
    assert warnings_of(err) == []
    # Without a public cache nothing is said of one.
    assert SETTING not in read_head(tmp_path / "out").receipt["training"]
    card = (tmp_path / "out/README.md").read_text()
    assert "public statistics" not in card
    assert ASSUMPTION not in card

  def test_families(self):
    """Most convolutional networks end with an activation; others do not."""
    for name in (*backbone_names(), "nf_resnet101"):
      signed = name.startswith(
        ("vit_", "deit", "dino", "siglip", "wrn_")
      ) or name in (RANDOM_PATCHES, "glyph_vit")
      assert name.startswith(NON_NEGATIVE) is not signed, name


@pytest.mark.parametrize("split", ["train", "train[:80%]", "train[90%:]"])
def test_every_part_of_a_split_has_rows_to_choose_by(tmp_path, split):
  rows = np.random.default_rng(0).standard_normal((1000, 3))
  npz = {"train_embedding": rows, "train_label": np.zeros(1000, int)}
  np.savez(tmp_path / "rows.npz", allow_pickle=False, **npz)
  cache = import_features(
    tmp_path / "rows.npz", tmp_path / "cache", split=split, num_classes=2
  )
  heads = [HeadConfig(head="lamb"), HeadConfig(head="adam")]
  trainer = choosing_trainer(cache, heads, None)
  assert isinstance(trainer, ChoosingTrainer)
  assert 0.03 < trainer._held_out.secret_held_out.mean() < 0.2


def test_a_unit_is_held_out_or_trained_on_as_a_whole(tmp_path):
  """By its id alone, whatever its rows are."""
  owner = np.random.default_rng(0).integers(-300, 300, 2000)
  found = []
  for seed in range(2):
    rows = np.random.default_rng(seed).standard_normal((2000, 3))
    path = tmp_path / f"{seed}.npz"
    np.savez(path, embedding=rows, label=owner % 2, unit_id=owner)
    cache = import_features(
      path, tmp_path / f"cache-{seed}", num_classes=2, unit_name="user"
    )
    heads = [HeadConfig(head="lamb"), HeadConfig(head="adam")]
    trainer = choosing_trainer(cache, heads, None)
    assert isinstance(trainer, ChoosingTrainer)
    found.append(trainer._held_out.secret_held_out)
  np.testing.assert_array_equal(found[0], found[1])
  held, trained_on = (set(owner[part]) for part in (found[0], ~found[0]))
  assert not held & trained_on
  assert 30 < len(held) < 90
