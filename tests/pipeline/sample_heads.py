"""Heads, made in a moment, of the same classes that training makes."""

import json
import math
import pathlib
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.stats import norm

from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.linear_dp.accounting import epsilon_of, mu_squared_from_epsilon
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import Release
from oneshot_dp.linear_dp.train import TrainedHead
from oneshot_dp.pipeline.heads.head_folder import write_head
from oneshot_dp.pipeline.heads.model_card import render_card
from oneshot_dp.pipeline.heads.receipt import derive
from oneshot_dp.pipeline.ledger.entries import ChargeRequest, LedgerEntry

D, K = 4, 3
CHARGE_ID = "c".zfill(32)
PARENT_ID = "e".zfill(32)


def sample_info(**changes):
  fields: dict[str, Any] = {
    "dataset": "pets",
    "split": "train",
    "source_num_examples": 300,
    "feature_dim": D,
    "class_names": ("cat", "dog", "rat"),
    "backbone": {"name": "vit_ti16", "layer": "cls"},
  }
  return CacheInfo(**(fields | changes))


def trained_head(
  epsilon=1.0,
  delta=1e-5,
  source=None,
  seed=None,
  noise=True,
  num_classes=K,
  **changes,
):
  """As `train` makes one: of six releases that add up to ε."""
  source = source or NoiseSource(seed=seed)
  drawn = np.random.default_rng()
  kernel = drawn.normal(size=(D, num_classes)).astype(np.float32)
  releases = ()
  state = {}
  mu2 = None
  noise_source = "no noise"
  if noise:
    noise_source = source.description
    mu2 = mu_squared_from_epsilon(epsilon, delta) * (1 - 1e-12)
    sigma = (mu2 / 6) ** -0.5 * (1 + 1e-13)
    releases = (
      Release("mean", (1, D), sigma),
      *[Release("gradient", (num_classes, D), sigma)] * 5,
    )
    state = {
      "estimate/mean": drawn.normal(size=(1, D)),
      "precision/mean": np.asarray(mu2 / 6),
      "kernel": kernel.astype(np.float64),
    }
  fields: dict[str, Any] = {
    "head": LinearHead(kernel=kernel, bias=np.zeros(num_classes, np.float32)),
    "name": "auto",
    "epsilon": mu2 and epsilon_of(mu2, delta),
    "delta": mu2 and delta,
    "draw": 0,
    "mu_squared": mu2,
    "releases": releases,
    "state": state,
    "options": {"balanced": False},
    "noise_source": noise_source,
    "private": noise and source.is_private,
  }
  return TrainedHead(**(fields | changes))


def mu2_of(epsilon, delta=1e-5):
  """What a ledger is charged for it, exactly."""
  return Fraction(mu_squared_from_epsilon(epsilon, delta))


def row_keys(*numbers, kind="image"):
  """The keys by which a ledger knows rows, as one kind of a request's keys."""
  return {kind: np.array(sorted(numbers), np.uint64)}


def make_charge_request(*costs, dataset="pets", keys=None, **changes):
  """Charges of μ² each, by number; of three rows, if no keys are given."""
  keys = {"image": np.array([1, 2, 3], np.uint64)} if keys is None else keys
  fields: dict[str, Any] = {"unit": "example", "delta": 1e-5} | changes
  exact = [None if cost is None else str(Fraction(cost)) for cost in costs]
  charges = tuple(
    LedgerEntry(
      kind="charge", description=f"charge {i}", mu_squared=mu2, **fields
    )
    for i, mu2 in enumerate(exact)
  )
  return ChargeRequest(dataset=dataset, charges=charges, keys=keys)


def fit(folder, **stated):
  """Edits what a head's receipt states; all that follows is made to fit."""
  receipt = json.loads((folder / "receipt.json").read_text())
  receipt["stated"] |= stated
  receipt["follows"] = derive(receipt["stated"])
  (folder / "receipt.json").write_text(json.dumps(receipt))
  (folder / "README.md").write_text(render_card(receipt))


def heads_in(folder):
  """The weights of all heads of a run."""
  return sorted(pathlib.Path(folder).rglob("head.safetensors"))


def write_private(folder):
  write_head(folder, trained_head(2.0), sample_info(), charge_id=CHARGE_ID)


def write_uncharged(folder):
  write_head(folder, trained_head(0.5, delta=1e-7), sample_info())


def write_of_units(folder):
  info = sample_info(unit="patient", views={"count": 4})
  write_head(folder, trained_head(), info, Part.parse("[10%:80%]"))


def write_seeded(folder):
  info = sample_info(num_classes_source="labels (treated as public)")
  write_head(folder, trained_head(seed=7), info, charge_id=CHARGE_ID)


def write_baseline(folder):
  baseline = trained_head(noise=False)
  write_head(folder, baseline, sample_info(), charge_id=CHARGE_ID)


def write_continued(folder):
  options = {"balanced": True, "start_sha256": "a".zfill(64)}
  write_head(
    folder,
    trained_head(8.0, options=options),
    sample_info(),
    charge_id=CHARGE_ID,
    parent_charge_id=PARENT_ID,
  )


HEAD_WRITERS = {
  "private": write_private,
  "uncharged": write_uncharged,
  "of units": write_of_units,
  "seeded": write_seeded,
  "baseline": write_baseline,
  "continued": write_continued,
}
"""What writes a head of each kind into a folder."""


def delta_of(mu, epsilon):
  """Balle & Wang, theorem 8, by SciPy."""
  near = norm.cdf(mu / 2 - epsilon / mu)
  far = norm.cdf(-mu / 2 - epsilon / mu)
  return near - math.exp(epsilon) * far
