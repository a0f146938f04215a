"""`--head multi-step`, from the command line to `verify`."""

import csv
import dataclasses
import json
import math
import pathlib
import shutil
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import NeighboringRelation, gaussian_mechanism
from dp_accounting.pld import PLDAccountant

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import (
  HeadConfig,
  PrivacyConfig,
  StepsConfig,
)
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.accounting.gaussian import noise_multiplier
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.heads.multi_step.rule import MultiStepRule, make_rule
from oneshot_dp.linear_dp.heads.registry import head_kind, mechanism_of
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows import unit_norm_rows as secret_rows
from oneshot_dp.linear_dp.statistics import gradient_sum
from oneshot_dp.linear_dp.trainer import Trainer
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.importing.import_features import import_features
from oneshot_dp.pipeline.saved_head.check_receipt import problems
from oneshot_dp.pipeline.saved_head.directory import read_head, write_head
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.train_heads import (
  cache_ledger,
  cache_trainer,
  plan_heads,
  train_heads,
)
from tests.pipeline import paid
from tests.pipeline.by_chance import same_bits
from tests.pipeline.command_line import SWEEP, TRAIN, fails, succeeds
from tests.pipeline.sample_caches import CLASSES, DIM
from tests.pipeline.saved_head.receipt_test import changed, leaves, without
from tests.pipeline.saved_head.verify_test import forge

DELTA = 1e-5
N = 180
NUMBERS = ("mechanism", "privacy", "composition")
FREE = {
  ("feature_dim",),
  ("learning_rate",),
  ("clip_norm",),
  ("max_norm",),
  ("loss", "bias"),
  ("init_scale",),
  ("init_seed",),
  ("ema_decay",),
  ("batches", "batch_size"),
}
"""Numbers of a mechanism that no other number follows from (but for the size of
a batch, by rounding): the weights and the card's digest tell."""
Head = dict[str, Any]
MULTI = f"{TRAIN} --head multi-step --epsilon 8"
POISSON = "--steps.batch-size 60 --steps.sampling poisson --steps.epochs 2"
SAMPLINGS: dict[str, StepsConfig] = {
  "full": StepsConfig(epochs=3, l2_clip_norm=0.5, ema_decay=0.5),
  "poisson": StepsConfig(
    optimizer="adam", epochs=2, batch_size=60, sampling="poisson"
  ),
  "partition": StepsConfig(
    optimizer="lamb",
    epochs=2,
    batch_size=60,
    sampling="partition",
    loss="sigmoid",
    unit_norm=False,
    init="normal",
    init_scale=0.01,
    init_seed=7,
  ),
}


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
  """Chunks of 32 rows a device, padded no further."""
  with pytest.MonkeyPatch.context() as patch:
    for module in (secret_rows, gradient_sum):
      patch.setattr(module, "ROWS_PER_DEVICE", 32)
    yield


def trained(
  cache: FeatureCache,
  steps: StepsConfig,
  *epsilons: float,
  ledger_dir: pathlib.Path | None = None,
  num_draws: int = 1,
  baseline: bool = False,
  **fields: Any,
):
  privacy = PrivacyConfig(delta=DELTA, **fields)
  config = HeadConfig(head="multi-step", steps=steps)
  plan = plan_heads(
    config, len(cache), epsilons or (8.0,), privacy, num_draws=num_draws
  )
  heads = train_heads(
    cache, plan, config, privacy, ledger_dir=ledger_dir, baseline=baseline
  )
  return plan, heads


@pytest.fixture(scope="module")
def written(train_cache, tmp_path_factory) -> pathlib.Path:
  """A private head and a baseline of each sampling; to be read only."""
  folder = tmp_path_factory.mktemp("multi-step")
  for name, steps in SAMPLINGS.items():
    _, heads = trained(
      train_cache, steps, ledger_dir=folder / "ledgers", baseline=True
    )
    for head, kind in zip(heads, ("", "-baseline"), strict=True):
      write_head(folder / f"{name}{kind}", head, train_cache.info)
  return folder


@pytest.fixture(params=list(SAMPLINGS))
def name(request) -> str:
  return request.param


@pytest.fixture
def receipt(written, name) -> Head:
  return read_head(written / name).receipt


def epsilon_of(
  sigma: float, sampling: PoissonSampling, *others: tuple[float, int]
) -> float:
  """By dp_accounting alone: Poisson samples, and (σ, T) with the same q."""
  accountant = PLDAccountant(value_discretization_interval=7e-4)
  for each, steps in ((sigma, sampling.num_steps), *others):
    accountant.compose(
      dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(
          sampling.probability, dp_accounting.GaussianDpEvent(each)
        ),
        steps,
      )
    )
  return accountant.get_epsilon(DELTA)


class TestReceipt:
  def test_it_is_sound_and_paid_for(self, written, name, capsys):
    for kind in ("", "-baseline"):
      folder = written / f"{name}{kind}"
      out, _ = succeeds(
        capsys, "verify", folder, "--ledger-dir", written / "ledgers"
      )
      assert out.strip().endswith(", and the ledger was charged for it")
      assert ("NOT PRIVATE" in out) == (kind != "")

  def test_all_settings_are_in_it(self, receipt, name):
    steps = dataclasses.asdict(SAMPLINGS[name])
    settings = {"head": "multi-step", "steps": steps}
    assert receipt["training"] == settings
    mechanism = receipt["mechanism"]
    asked = SAMPLINGS[name]
    assert mechanism["kind"] == "multi-step"
    assert mechanism["optimizer"] == asked.optimizer
    assert mechanism["init"] == asked.init
    assert mechanism["init_scale"] == (asked.init_scale or 0.0)
    assert mechanism["init_seed"] == asked.init_seed
    assert mechanism["ema_decay"] == asked.ema_decay
    assert mechanism["loss"]["name"] == asked.loss
    assert mechanism["clip_norm"] == (asked.l2_clip_norm or 0.15) or (
      not asked.unit_norm
    )
    assert mechanism["batches"] == {
      "sampling": name,
      "num_examples": N,
      "batch_size": asked.batch_size or N,
      "epochs": asked.epochs,
    }
    assert mechanism["num_steps"] == {"full": 3}.get(name, 6)

  def test_epsilon_follows_by_no_code_of_ours(self, receipt, name):
    """σ, q and T are in the receipt."""
    mechanism, privacy = receipt["mechanism"], receipt["privacy"]
    sigma = mechanism["step_noise_multiplier"]
    if name == "poisson":
      assert privacy["noise_multiplier"] == sigma
      assert mechanism["sampling_probability"] == pytest.approx(1 / 3, abs=1e-9)
      sampling = PoissonSampling(
        probability=mechanism["sampling_probability"], num_steps=6
      )
      found = epsilon_of(sigma, sampling)
    else:
      # Six steps of a partition are two mechanisms on every row.
      passes = {"full": 3, "partition": 2}[name]
      found = gaussian_mechanism.get_epsilon_gaussian(
        sigma / math.sqrt(passes), DELTA
      )
    assert found == pytest.approx(8.0, rel=3e-3)
    assert found <= 8.0 * (1 + 1e-3)

  def test_sampling_pays(self, written):
    """Less noise in a step for the same ε, which is what it is for."""
    poisson, partition = (
      read_head(written / kind).receipt["mechanism"]["step_noise_multiplier"]
      for kind in ("poisson", "partition")
    )
    passes = noise_multiplier(8.0, DELTA) * math.sqrt(6)
    assert poisson < passes / 1.5
    assert partition == pytest.approx(passes / math.sqrt(3))

  def test_the_accountant_is_named(self, receipt, name):
    said = receipt["privacy"]["accountant"]
    assert ("Poisson sampling" in said) == (name == "poisson")
    assert problems(changed(receipt, ("privacy", "accountant"), "by hand"))

  def test_in_other_relations_and_at_other_deltas(self, receipt):
    privacy = receipt["privacy"]
    curve = list(privacy["epsilon_by_delta"].values())
    assert curve == sorted(curve)
    assert privacy["epsilon_by_delta"]["1e-05"] == pytest.approx(8.0, rel=1e-3)
    by_relation = privacy["epsilon_by_relation"]
    assert by_relation["ADD_OR_REMOVE_ONE"] == pytest.approx(8.0, rel=1e-3)
    assert by_relation["REPLACE_SPECIAL"] == pytest.approx(8.0, rel=1e-3)
    assert by_relation["REPLACE_ONE"] > 8.5

  def test_any_number_that_is_changed_is_reported(self, receipt):
    assert problems(receipt) == []
    unseen, tried = [], 0
    for path, value in leaves({key: receipt[key] for key in NUMBERS}):
      if isinstance(value, str) or value is None or path[1:] in FREE:
        continue
      other: Any = value * (1 + 1e-6)
      if isinstance(value, int):
        other = not value if isinstance(value, bool) else value + 1
      tried += 1
      if not problems(changed(receipt, path, other)):
        unseen.append(path)
    assert unseen == []
    assert tried > 25

  def test_a_number_that_is_missing_is_reported(self, receipt):
    for key in receipt["mechanism"].keys() - {"sensitivity"}:
      assert problems(without(receipt, ("mechanism", key))), key
    for key in receipt["privacy"]:
      assert problems(without(receipt, ("privacy", key))), key

  @pytest.mark.parametrize(
    ("path", "value"),
    [
      (("mechanism", "kind"), "whitened"),
      (("mechanism", "batches", "sampling"), "shuffled"),
      (("mechanism", "batches", "batch_size"), 0),
      (("mechanism", "batches", "num_examples"), 10**400),
      (("mechanism", "loss", "name"), "hinge"),
      (("mechanism", "rows_per_unit"), 2),
      (("mechanism", "clipped"), "unit"),
      (("training", "head"), "lamb"),
      (("privacy", "privacy_unit"), "user"),
      (("privacy", "neighboring_relation"), "REPLACE_ONE"),
      (("composition", "order"), "twice"),
      (("composition", "composed_epsilon"), 7.0),
      (("data", "class_names"), ["a", "b"]),
      (("data", "num_examples"), 181),
      (("private",), False),
    ],
  )
  def test_a_fact_that_is_changed_is_reported(self, receipt, path, value):
    assert problems(changed(receipt, path, value))

  @pytest.mark.parametrize("head", ["full", "poisson", "poisson-baseline"])
  def test_any_field_changed_on_disk_is_found(self, written, head, tmp_path):
    """Also what nothing can recompute; numbers that follow: see above."""
    folder = tmp_path / "head"
    shutil.copytree(written / head, folder)
    file = folder / "receipt.json"
    receipt = json.loads(file.read_text())
    ledgers = written / "ledgers"
    assert verify_head(folder, ledgers).problems == ()
    tried = 0
    # What all heads have is tried once.
    sections = receipt if head == "full" else {k: receipt[k] for k in NUMBERS}
    for path, value in leaves(sections):
      if value is None or isinstance(value, bool):
        other: Any = not value
      elif isinstance(value, str):
        other = f"{value}x"
      elif path[0] in NUMBERS and path[1:] not in FREE:
        continue
      else:
        other = value + 1
      file.write_text(json.dumps(changed(receipt, path, other)))
      assert verify_head(folder, ledgers).problems, path
      tried += 1
    assert tried > (60 if head == "full" else 20)

  def test_poisson_samples_are_no_partition(self, written):
    """Nor the other way round: the accounting is another."""
    for name, other in (("poisson", "partition"), ("partition", "poisson")):
      receipt = read_head(written / name).receipt
      rule = mechanism_of(receipt["mechanism"])
      assert isinstance(rule, MultiStepRule)
      batches = dataclasses.replace(rule.batches, sampling=other)
      forged = dataclasses.replace(rule, batches=batches)
      assert problems(receipt | {"mechanism": forged.as_json()})


class TestTheLedger:
  def test_the_entry_is_compared(self, written, tmp_path):
    """Receipt and card say, in accord, that fewer rows were sampled."""
    honest, forged = tmp_path / "honest", tmp_path / "forged"
    for folder in (honest, forged):
      shutil.copytree(written / "poisson", folder)
    receipt = json.loads((forged / "receipt.json").read_text())
    entry = receipt["composition"]["ledger_entry"]
    other = written / "partition"
    (paid_by_other,) = (
      json.loads((other / "receipt.json").read_text())["composition"][key]
      for key in ("ledger_entry",)
    )
    assert entry != paid_by_other
    forge(forged, {("composition", "ledger_entry"): paid_by_other})
    found = verify_head(forged, written / "ledgers").problems
    assert any(line.startswith("dp_event is ") for line in found)
    assert all("in the ledger, where the receipt" in line for line in found)
    assert verify_head(honest, written / "ledgers").problems == ()

  def test_what_was_paid(self, written, train_cache):
    entries = cache_ledger(train_cache, written / "ledgers").entries()
    first, second, third = (e for e in entries if e["kind"] == "release")
    gaussian = {noise_multiplier(8.0, DELTA): 1}
    assert paid.gaussians(first) == paid.gaussians(third) == gaussian
    (steps,) = paid.samples(second)
    assert steps.count == 6
    assert steps.sampling_probability == pytest.approx(1 / 3, abs=1e-9)
    baselines = [e for e in entries if e["kind"] == "baseline"]
    assert [e["private"] for e in baselines] == [False] * 3

  def test_it_is_charged_before_any_random_bit(
    self, train_cache, name, monkeypatch
  ):
    """Those that choose the rows are bits too."""
    ledger = cache_ledger(train_cache, None)
    charged = []
    for method in ("words", "bits"):
      draw = getattr(NoiseSource, method)
      monkeypatch.setattr(
        NoiseSource,
        method,
        lambda self, n, draw=draw: (
          charged.append(len(ledger.entries())) or draw(self, n)
        ),
      )
    trained(train_cache, SAMPLINGS[name])
    assert set(charged) == {1}


@pytest.mark.parametrize(
  "relation", ["add-or-remove-one", "replace-one", "replace-special"]
)
def test_relations(train_cache, tmp_path, name, relation):
  """Random batches are refused where rows are replaced."""
  fields = {"neighboring_relation": relation}
  if name == "poisson" and relation == "replace-one":
    with pytest.raises(InputError, match="leave out --neighboring-relation"):
      trained(train_cache, SAMPLINGS[name], **fields)
    assert cache_ledger(train_cache, None).entries() == []
    return
  _, (head,) = trained(train_cache, SAMPLINGS[name], **fields)
  found = write_head(tmp_path / "head", head, train_cache.info)
  assert verify_head(tmp_path / "head").problems == ()
  by_relation = found["privacy"]["epsilon_by_relation"]
  stated = found["privacy"]["neighboring_relation"]
  assert by_relation[stated] == pytest.approx(8.0, rel=1e-3)


def test_it_is_a_trainer(train_cache):
  config = HeadConfig(head="multi-step")
  assert isinstance(cache_trainer(train_cache, [config]), Trainer)
  for head in (config, HeadConfig()):
    assert head_kind(head.head).sampling(head, N) is None


@pytest.mark.parametrize("epochs", [None, 1, 7])
@pytest.mark.parametrize("batch_size", [1, 50, 70, 179, 180])
def test_what_a_plan_must_know_is_what_the_head_does(batch_size, epochs):
  """q and T of the plan are those of the steps, whatever the defaults."""
  steps = StepsConfig(batch_size=batch_size, sampling="poisson", epochs=epochs)
  config = HeadConfig(head="multi-step", steps=steps)
  for sigma in (0.0, 0.7, 30.0):
    rule = make_rule(
      steps,
      num_examples=N,
      feature_dim=DIM,
      num_classes=CLASSES,
      noise_multiplier=sigma,
    )
    assert head_kind("multi-step").sampling(config, N) == rule.sampling


OPTIONS: list[tuple[str, dict[str, Any]]] = [
  (
    "--steps.optimizer lamb --steps.epochs 3 --steps.l2-clip-norm 0.75"
    " --steps.loss sigmoid --steps.initial-bias -5 --steps.init normal"
    " --steps.init-scale 0.5 --steps.init-seed 9 --steps.ema-decay 0.9"
    " --steps.learning-rate 0.25 --steps.no-unit-norm",
    {
      "optimizer": "lamb",
      "num_steps": 3,
      "clip_norm": 0.75,
      "loss": {"name": "sigmoid", "bias": -5.0},
      "init": "normal",
      "init_scale": 0.5,
      "init_seed": 9,
      "ema_decay": 0.9,
      "learning_rate": 0.25,
      "max_norm": 256.0,
    },
  ),
  (
    f"{POISSON} --steps.optimizer adam --steps.init lecun --steps.unit-norm",
    {
      "optimizer": "adam",
      "num_steps": 6,
      "batches.sampling": "poisson",
      "batches.batch_size": 60,
      "clip_norm": 0.15,
      "init": "lecun",
      "max_norm": None,
    },
  ),
  (
    "--steps.batch-size 90 --steps.sampling partition --steps.loss sigmoid",
    {
      "num_steps": 20,
      "batches.sampling": "partition",
      "batches.batch_size": 90,
      "loss": {"name": "sigmoid", "bias": -math.log(3)},
      "optimizer": "momentum",
    },
  ),
]


class TestTrain:
  def test_what_it_says(self, place, capsys, tmp_path):
    out, err = succeeds(capsys, *place(MULTI))
    assert "epsilon = 8 at delta = 1e-05 (ADD_OR_REMOVE_ONE)" in out
    assert "noise from os.urandom" in out
    charged, new = err.splitlines()
    assert charged.startswith("charged to ")
    assert new.startswith("warning: this is a new ledger: ")
    succeeds(capsys, "verify", tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert "100 full-batch steps of momentum from zero weights" in card

  def test_the_card_says_what_the_batches_are(self, written):
    cards = {
      name: (written / name / "README.md").read_text() for name in SAMPLINGS
    }
    assert "6 steps on about 60 rows each (poisson) of adam" in cards["poisson"]
    assert "(partition) of lamb from normal weights" in cards["partition"]
    assert "weights averaged (EMA 0.5)" in cards["full"]
    assert "gradients clipped to norm 0.5" in cards["full"]

  @pytest.mark.parametrize(
    ("flags", "settings"),
    OPTIONS,
  )
  def test_every_option_reaches_the_rule_and_the_receipt(
    self, place, capsys, tmp_path, flags, settings
  ):
    argv = place(f"{MULTI} {flags}")
    succeeds(capsys, *argv, "--noise-seed", 1)
    receipt = read_head(tmp_path / "out").receipt
    for key, value in settings.items():
      found: Any = receipt["mechanism"]
      for part in key.split("."):
        found = found[part]
      assert found == value, key
    given = dict(zip(flags.split()[::2], flags.split()[1::2], strict=False))
    for flag, value in given.items():
      field = flag.removeprefix("--steps.").replace("-", "_")
      if field in receipt["training"]["steps"]:
        said = receipt["training"]["steps"][field]
        assert str(said).removesuffix(".0") == value, flag
    assert problems(receipt) == []

  def test_every_option_is_tried_above(self):
    tried = " ".join(flags for flags, _ in OPTIONS)
    for field in dataclasses.fields(StepsConfig):
      assert f"--steps.{field.name.replace('_', '-')}" in tried

  def test_heads_learn(
    self, train_cache, eval_cache, tmp_path, monkeypatch, capsys, name
  ):
    """Of batches that are the same in every run: the system draws those of a
    baseline."""
    same_bits(monkeypatch)
    _, (_, baseline) = trained(train_cache, SAMPLINGS[name], baseline=True)
    head = tmp_path / "head"
    write_head(head, baseline, train_cache.info)
    argv = ("evaluate", head, "--cache", eval_cache.path)
    out, _ = succeeds(capsys, *argv)
    assert json.loads(out)["top1"] > (0.4 if name == "partition" else 0.8)


NONSENSE: list[tuple[dict[str, Any], str]] = [
  ({"batch_size": 60}, "batch_size=60 and sampling=None go together"),
  ({"sampling": "poisson"}, "batch_size=None and sampling=poisson go"),
  ({"batch_size": 0, "sampling": "poisson"}, "batch_size=0 must be at least 1"),
  ({"batch_size": -1, "sampling": "poisson"}, "batch_size=-1 must be at"),
  ({"epochs": 0}, "epochs=0 must be at least 1"),
  ({"init_scale": 0.1}, "init_scale=0.1 with init='zero'"),
  ({"init": "lecun", "init_scale": 1.0}, "init_scale=1.0 with init='lecun'"),
  ({"init": "normal"}, "init_scale=None with init='normal'"),
  ({"init": "lecun", "init_seed": -1}, "init_seed=-1 must be 0 or more"),
  ({"initial_bias": -10.0}, "initial_bias=-10.0 is for loss='sigmoid'"),
  *(
    ({"loss": "sigmoid", "initial_bias": bias}, "must be finite")
    for bias in (math.nan, math.inf, -math.inf)
  ),
  *(
    ({name: value}, f"{name}={value} must be positive and finite")
    for name in ("learning_rate", "l2_clip_norm")
    for value in (0.0, -1.0, math.nan, math.inf)
  ),
]


@pytest.mark.parametrize(("changes", "said"), NONSENSE, ids=str)
def test_settings_that_make_no_sense(changes, said):
  with pytest.raises(InputError) as caught:
    StepsConfig(**changes)
  assert said in str(caught.value)
  assert "\n" not in str(caught.value)


WRONG = [
  ("--steps.batch-size 60", "batch_size=60 and sampling=None go together"),
  (f"{POISSON} --steps.batch-size 181", "not between 1 and the 180 rows"),
  ("--steps.init normal --steps.init-scale nan", "init_scale=nan is not"),
  ("--steps.init normal --steps.init-scale -1", "init_scale=-1.0 is not"),
  ("--steps.init lecun --steps.init-seed -1", "init_seed=-1 must be 0"),
  (
    "--steps.loss sigmoid --steps.initial-bias nan",
    "initial_bias=nan must be finite",
  ),
  ("--steps.l2-clip-norm nan", "l2_clip_norm=nan must be positive"),
  ("--steps.ema-decay 1", "ema_decay=1.0 is not in [0, 1)"),
  ("--steps.ema-decay nan", "ema_decay=nan is not in [0, 1)"),
  (
    f"{POISSON} --neighboring-relation replace-one",
    "leave out --neighboring-relation replace-one, or use full batches",
  ),
  (f"{POISSON} --delta 1e-13", "is too small to account for random batches"),
  ("--l2-clip-norm 2", "settings of its own, see steps"),
  ("--max-rows-per-unit 1", "max_rows_per_unit=1 is for heads of one step"),
  ("--head lamb --steps.epochs 2", "settings of steps are for"),
  ("--head auto --steps.epochs 2", "settings of steps are for"),
  (f"{POISSON} --steps.sampling full", "full"),
]


@pytest.mark.parametrize(("flags", "said"), WRONG, ids=[f for f, _ in WRONG])
def test_what_makes_no_sense_is_refused(
  place, capsys, train_cache, tmp_path, flags, said
):
  assert said in fails(capsys, *place(MULTI), *flags.split())
  assert cache_ledger(train_cache, None).entries() == []
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
  ("flags", "said"),
  [
    ("--release nested", "release='nested' is for heads of one step and least"),
    (f"{POISSON} --steps.batch-size 500", "not between 1 and the 180 rows"),
    (f"{POISSON} --neighboring-relation replace-one", "full batches"),
  ],
)
def test_a_sweep_refuses_too(place, capsys, train_cache, flags, said):
  argv = place(f"{SWEEP} --head multi-step {flags}")
  assert said in fails(capsys, *argv)
  assert cache_ledger(train_cache, None).entries() == []


@pytest.mark.parametrize("command", [TRAIN, SWEEP])
def test_units_are_refused(place, capsys, tmp_path, command):
  rng = np.random.default_rng(0)
  np.savez(
    tmp_path / "visits.npz",
    embedding=rng.standard_normal((60, DIM)).astype(np.float32),
    label=rng.integers(0, CLASSES, 60),
    unit_id=np.arange(60) // 3,
  )
  paths = [
    import_features(
      tmp_path / "visits.npz",
      tmp_path / split,
      split=split,
      num_classes=CLASSES,
      unit_name="user",
      backbone_name="net",
      dataset_name=split,
    ).path
    for split in ("private", "other")
  ]
  argv = [*place(f"{command} --head multi-step"), "--cache", paths[0]]
  argv += ["--eval-cache", paths[1]] if command == SWEEP else []
  assert "the privacy unit of this cache is 'user'; use --head lamb" in fails(
    capsys, *argv
  )


@pytest.fixture(scope="module")
def swept(train_cache, eval_cache, tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("swept")
  argv = [
    *("sweep", "--cache", str(train_cache.path)),
    *("--eval-cache", str(eval_cache.path), "--head", "multi-step"),
    *("--epsilons", "5", "8", "--delta", "1e-5", *POISSON.split()),
    *("--num-draws", "2", "--baseline"),
    *("--ledger-dir", str(folder / "ledgers")),
  ]
  assert main([*argv, "--out", str(folder / "results")]) == 0
  return folder


class TestSweep:
  def test_a_row_for_each_head(self, swept):
    rows = self.rows(swept)
    assert [(r["epsilon"], r["draw"], r["private"]) for r in rows] == [
      *((e, s, "True") for s in "01" for e in ("8.0", "5.0")),
      ("inf", "0", "False"),
    ]
    assert {r["head"] for r in rows} == {"multi-step"}
    assert {r["release"] for r in rows} == {"independent"}
    kernels = {
      read_head(swept / "results" / r["path"]).head.kernel.tobytes()
      for r in rows
    }
    assert len(kernels) == 5

  def test_they_compose_by_privacy_loss_distributions(self, swept, train_cache):
    sampling = PoissonSampling(
      probability=round(2**32 / 3) / 2**32, num_steps=6
    )
    five, eight = (sampling.noise_multiplier(e, DELTA) for e in (5.0, 8.0))
    whole = epsilon_of(five, sampling, (five, 6), (eight, 6), (eight, 6))
    assert whole > 12
    for row in self.rows(swept):
      assert float(row["composed_epsilon"]) == pytest.approx(whole, rel=2e-3)
    spent = cache_ledger(train_cache, swept / "ledgers").spending(
      NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    assert spent.epsilon(DELTA) == pytest.approx(whole, rel=2e-3)

  def test_every_head_is_sound_and_paid_for(self, swept):
    for row in self.rows(swept):
      check = verify_head(swept / "results" / row["path"], swept / "ledgers")
      assert check.problems == ()
      assert "the ledger was charged for it" in check.conclusion

  def test_what_was_asked_is_beside_it(self, swept):
    config = json.loads((swept / "results/config.json").read_text())
    assert config["head"]["steps"]["sampling"] == "poisson"
    assert config["head"].keys() == {"head", "steps"}

  def test_the_baseline_owns_up(self, swept):
    folder = swept / "results/heads/baseline-NOT-PRIVATE"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "**NOT PRIVATE**" in (folder / "README.md").read_text()
    receipt = read_head(folder).receipt
    assert receipt["private"] is False
    assert receipt["privacy"]["epsilon"] == "NOT PRIVATE"
    assert set(receipt["privacy"]["epsilon_by_relation"].values()) == {
      "NOT PRIVATE"
    }
    assert receipt["mechanism"]["step_noise_multiplier"] == 0

  def rows(self, swept: pathlib.Path) -> list[dict[str, str]]:
    with (swept / "results/results.csv").open(newline="") as file:
      return list(csv.DictReader(file))


class TestSeed:
  def test_it_is_not_private_anywhere(
    self, place, capsys, tmp_path, train_cache
  ):
    _, err = succeeds(capsys, *place(f"{MULTI} {POISSON} --noise-seed 3"))
    assert "these heads are NOT PRIVATE" in err
    saved = read_head(tmp_path / "out")
    assert saved.receipt["private"] is False
    assert saved.receipt["privacy"]["noise_source"] == "seeded: NOT PRIVATE"
    assert "**NOT PRIVATE**" in (tmp_path / "out/README.md").read_text()
    assert problems(saved.receipt) == []
    assert problems(changed(saved.receipt, ("private",), True))
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700
    assert "NOT PRIVATE" in verify_head(tmp_path / "out").conclusion
    (entry,) = cache_ledger(train_cache, None).entries()
    assert entry["private"] is False

  def test_it_is_all_the_randomness_there_is(self, train_cache, name):
    """Who knows it knows the rows of every step: they are marked for that."""
    kernels = [
      trained(train_cache, SAMPLINGS[name], noise_seed=seed)[1][0].head.kernel
      for seed in (3, 3, 4)
    ]
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert (kernels[0] != kernels[2]).all()


def test_help(capsys):
  for command in ("train", "sweep"):
    with pytest.raises(SystemExit, match="0"):
      main([command, "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "multi-step,auto}" in text
    for field in dataclasses.fields(StepsConfig):
      assert f"--steps.{field.name.replace('_', '-')}" in text
