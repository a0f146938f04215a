"""`--head multi-step`, from the command line to `verify`."""

import collections
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, StepsConfig
from oneshot_dp.linear_dp.accounting.gaussian import noise_multiplier
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.heads.multi_step.rule import MultiStepRule, make_rule
from oneshot_dp.linear_dp.heads.registry import head_kind, mechanism_of
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.saved_head.check_receipt import problems
from oneshot_dp.pipeline.saved_head.directory import read_head, write_head
from oneshot_dp.pipeline.saved_head.verify import verify_head
from oneshot_dp.pipeline.training.train_heads import cache_ledger
from tests.head_contract import (
  DELTA,
  DRAWS,
  SECOND_DRAW,
  HeadContract,
  Kind,
  Path,
  PerExample,
  Receipt,
  changed,
  trained,
)
from tests.pipeline import paid
from tests.pipeline.command_line import SWEEP, TRAIN, fails, succeeds
from tests.pipeline.sample_caches import CLASSES, DIM
from tests.pipeline.saved_head.verify_test import forge

N = 180
FREE = frozenset(
  {
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
)
"""Numbers of a mechanism that no other number follows from (but for the size of
a batch, by rounding): the weights and the card's digest tell."""
MULTI = f"{TRAIN} --head multi-step --epsilon 8"
POISSON = "--steps.batch-size 60 --steps.sampling poisson --steps.epochs 2"
SAMPLING = PoissonSampling(probability=round(2**32 / 3) / 2**32, num_steps=6)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Steps(Kind):
  """`passes` is how many steps a row is in."""

  passes: int

  def sigma(self, receipt: Receipt) -> float:
    step = receipt["mechanism"]["step_noise_multiplier"]
    return step / math.sqrt(self.passes)


class Poisson(Steps):
  def step_sigma(self, epsilon: float) -> float:
    return SAMPLING.noise_multiplier(epsilon, DELTA)

  def paid(self, entry: dict[str, Any]) -> dict[float, int]:
    found: collections.Counter[float] = collections.Counter()
    for each in paid.samples(entry):
      draws, left = divmod(each.count, SAMPLING.num_steps)
      assert left == 0
      assert each.sampling_probability == SAMPLING.probability
      found[each.noise_multiplier] += draws
    return dict(found)

  def composed_epsilon(self) -> float:
    return epsilon_of(*(self.step_sigma(e) for e in self.epsilons * DRAWS))


def epsilon_of(*sigmas: float) -> float:
  """By dp_accounting alone: heads of Poisson samples, by their noise."""
  accountant = PLDAccountant(value_discretization_interval=7e-4)
  for sigma in sigmas:
    accountant.compose(
      dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(
          SAMPLING.probability, dp_accounting.GaussianDpEvent(sigma)
        ),
        SAMPLING.num_steps,
      )
    )
  return accountant.get_epsilon(DELTA)


class Contract(PerExample, HeadContract):
  def test_all_settings_are_in_it(self, receipt):
    asked, said = self.kind.config.steps, receipt["mechanism"]
    settings = {"head": "multi-step", "steps": dataclasses.asdict(asked)}
    assert receipt["training"] == settings
    for name in ("optimizer", "init", "init_seed", "ema_decay"):
      assert said[name] == getattr(asked, name)
    assert said["init_scale"] == (asked.init_scale or 0.0)
    assert said["loss"]["name"] == asked.loss
    assert said["batches"] == {
      "sampling": asked.sampling or "full",
      "num_examples": N,
      "batch_size": asked.batch_size or N,
      "epochs": asked.epochs,
    }

  @pytest.mark.parametrize(
    ("path", "value"),
    [
      (("mechanism", "batches", "sampling"), "shuffled"),
      (("mechanism", "batches", "batch_size"), 0),
      (("mechanism", "batches", "num_examples"), 10**400),
      (("data", "num_examples"), 181),
    ],
  )
  def test_a_fact_of_steps_that_is_changed_is_reported(
    self, receipt, path, value
  ):
    assert problems(changed(receipt, path, value))

  def test_nested_releases_that_it_has_not(self, receipt):
    (said,) = problems(changed(receipt, ("composition", "order"), "nested"))
    assert said == "composition.order is 'nested', not independent."


@pytest.mark.slow
class TestFullBatches(Contract):
  kind = Steps(
    config=HeadConfig(
      head="multi-step",
      steps=StepsConfig(epochs=3, l2_clip_norm=0.5, ema_decay=0.5),
    ),
    flags="--head multi-step --steps.epochs 3 --steps.l2-clip-norm 0.5"
    " --steps.ema-decay 0.5",
    free=FREE,
    passes=3,
  )

  def test_the_card(self, sweep):
    card = (sweep.head(SECOND_DRAW) / "README.md").read_text()
    assert "weights averaged (EMA 0.5)" in card
    assert "gradients clipped to norm 0.5" in card


@pytest.mark.slow
class TestPartition(Contract):
  """Six steps of a partition are two mechanisms on every row."""

  kind = Steps(
    config=HeadConfig(
      head="multi-step",
      steps=StepsConfig(
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
    ),
    flags="--head multi-step --steps.optimizer lamb --steps.epochs 2"
    " --steps.batch-size 60 --steps.sampling partition --steps.loss sigmoid"
    " --steps.no-unit-norm --steps.init normal --steps.init-scale 0.01"
    " --steps.init-seed 7",
    free=FREE,
    least_top1=0.4,
    passes=2,
  )

  def test_the_card(self, sweep):
    card = (sweep.head(SECOND_DRAW) / "README.md").read_text()
    assert "(partition) of lamb from normal weights" in card


@pytest.mark.slow
class TestPoisson(Contract):
  """ε is that of dp_accounting's privacy loss distributions."""

  kind = Poisson(
    config=HeadConfig(
      head="multi-step",
      steps=StepsConfig(
        optimizer="adam", epochs=2, batch_size=60, sampling="poisson"
      ),
    ),
    flags=f"--head multi-step {POISSON} --steps.optimizer adam",
    free=FREE,
    epsilons=(8.0, 5.0),
    tried=(8.0,),
    tries=1,
    relations=("replace-special",),
    passes=6,
  )

  def check_epsilon(self, receipt: Receipt, epsilon: float) -> None:
    said, privacy = receipt["mechanism"], receipt["privacy"]
    assert privacy["noise_multiplier"] == said["step_noise_multiplier"]
    assert said["sampling_probability"] == pytest.approx(1 / 3, abs=1e-9)
    assert "Poisson sampling" in privacy["accountant"]
    found = epsilon_of(said["step_noise_multiplier"])
    assert found == pytest.approx(epsilon, rel=3e-3)
    assert found <= epsilon * (1 + 1e-3)

  def numbers(self, receipt: Receipt) -> Iterator[tuple[Path, Any]]:
    """Less what is recomputed for all heads alike, here at some length."""
    of_samples = ("epsilon", "noise_multiplier", "noise_sd_steps")
    for path, value in super().numbers(receipt):
      if path[0] == "mechanism" or path[1] in of_samples:
        yield path, value

  def test_replaced_rows_are_refused(self, train_cache):
    with pytest.raises(InputError, match="leave out --neighboring-relation"):
      trained(train_cache, self.kind.config, neighboring_relation="replace-one")
    assert cache_ledger(train_cache, None).entries() == []

  def test_sampling_pays(self, receipt):
    """Less noise in a step for the same ε, which is what it is for."""
    whole = noise_multiplier(8.0, DELTA) * math.sqrt(6)
    assert receipt["mechanism"]["step_noise_multiplier"] < whole / 1.5

  def test_in_other_relations_and_at_other_deltas(self, receipt):
    privacy = receipt["privacy"]
    curve = list(privacy["epsilon_by_delta"].values())
    assert curve == sorted(curve)
    assert privacy["epsilon_by_delta"]["1e-05"] == pytest.approx(8.0, rel=1e-3)
    by_relation = privacy["epsilon_by_relation"]
    assert by_relation["REPLACE_SPECIAL"] == pytest.approx(8.0, rel=1e-3)
    assert by_relation["REPLACE_SPECIAL"] == pytest.approx(8.0, rel=1e-3)
    assert by_relation["REPLACE_ONE"] > 8.5

  def test_the_card(self, sweep):
    card = (sweep.head(SECOND_DRAW) / "README.md").read_text()
    assert "6 steps on about 60 rows each (poisson) of adam" in card


@pytest.mark.slow
def test_the_ledger_is_compared(train_cache, tmp_path, ledger_dir):
  """Receipt and card name, in accord, an entry that paid for other noise."""
  for name, kind in (("a", TestPoisson.kind), ("b", TestPartition.kind)):
    (head,) = trained(train_cache, kind.config)
    write_head(tmp_path / name, head, train_cache.info)
  paid = ("composition", "ledger_entry")
  other = read_head(tmp_path / "b").receipt[paid[0]][paid[1]]
  assert verify_head(tmp_path / "a", ledger_dir).problems == ()
  forge(tmp_path / "a", {paid: other})
  found = verify_head(tmp_path / "a", ledger_dir).problems
  assert any(line.startswith("dp_event is ") for line in found)
  assert all("in the ledger, where the receipt" in line for line in found)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "other"),
  [(TestPoisson.kind, "partition"), (TestPartition.kind, "poisson")],
)
def test_poisson_samples_are_no_partition(sweeps, kind, other):
  """Nor the other way round: the accounting is another."""
  receipt = sweeps(kind).receipt(0)
  rule = mechanism_of(receipt["mechanism"])
  assert isinstance(rule, MultiStepRule)
  batches = dataclasses.replace(rule.batches, sampling=other)
  forged = dataclasses.replace(rule, batches=batches)
  assert problems(receipt | {"mechanism": forged.as_json()})


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
  for full in (HeadConfig(head="multi-step"), HeadConfig()):
    assert head_kind(full.head).sampling(full, N) is None


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
    assert "epsilon = 8 at delta = 1e-05 (REPLACE_SPECIAL)" in out
    assert "noise from os.urandom" in out
    _, head, charged, new = err.splitlines()
    assert head.startswith("head: multi-step, as asked; costs epsilon 8 at ")
    assert charged.startswith("charged to ")
    assert new.startswith("its first charge: ")
    succeeds(capsys, "verify", tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert "100 full-batch steps of momentum from zero weights" in card

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
  ("--steps.batch-size 60", "--steps.batch-size=60 and sampling=None"),
  (f"{POISSON} --steps.batch-size 181", "not between 1 and the 180 rows"),
  ("--steps.init normal --steps.init-scale nan", "init_scale=nan is not"),
  ("--steps.init normal --steps.init-scale -1", "init_scale=-1.0 is not"),
  ("--steps.init lecun --steps.init-seed -1", "--steps.init-seed=-1 must be 0"),
  (
    "--steps.loss sigmoid --steps.initial-bias nan",
    "--steps.initial-bias=nan must be",
  ),
  ("--steps.l2-clip-norm nan", "--steps.l2-clip-norm=nan must be"),
  ("--steps.ema-decay 1", "ema_decay=1.0 is not in [0, 1)"),
  ("--steps.ema-decay nan", "ema_decay=nan is not in [0, 1)"),
  (
    f"{POISSON} --neighboring-relation replace-one",
    "leave out --neighboring-relation replace-one, or use full batches",
  ),
  (f"{POISSON} --delta 1e-13", "is too small to account for random batches"),
  ("--l2-clip-norm 2", "settings of its own, see steps"),
  ("--max-rows-per-unit 1", "--max-rows-per-unit=1 is for heads of"),
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
    ("--release nested", "release='nested' is for heads of one step, least"),
    (f"{POISSON} --steps.batch-size 500", "not between 1 and the 180 rows"),
    (f"{POISSON} --neighboring-relation replace-one", "full batches"),
  ],
)
def test_a_sweep_refuses_too(place, capsys, train_cache, flags, said):
  argv = place(f"{SWEEP} --head multi-step {flags}")
  assert said in fails(capsys, *argv)
  assert cache_ledger(train_cache, None).entries() == []


def test_help(capsys):
  for command in ("train", "sweep"):
    with pytest.raises(SystemExit, match="0"):
      main([command, "--help-all"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "multi-step,auto}" in text
    for field in dataclasses.fields(StepsConfig):
      assert f"--steps.{field.name.replace('_', '-')}" in text
