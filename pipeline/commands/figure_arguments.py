"""The command line of `figures`; see `arguments`."""

import dataclasses
from pathlib import Path

from tyro.conf import FlagCreatePairsOff

from oneshot_dp.configs.head_config import RelationName


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
  """Draw the paper's accuracy against epsilon, at several deltas and draws.

  The paper's head (lamb, with its settings) at every delta, epsilon and draw.
  Writes accuracy-vs-epsilon.png (in the manner of its figure 1b), one picture
  for each delta (figure 3), real-accuracy.png with --real-labels (figure 4),
  the tables, and every head with its receipt. Published numbers are drawn
  beside ours, cited, where the data set is ImageNet (imagenet2012…).

  The private rows are read once. Heads of one delta and draw are nested and
  together cost the largest epsilon; draws and deltas compose. All of it is
  charged, or refused by a cap, before any noise is drawn, and the table says
  what it comes to at each delta. The labels of the evaluation cache are treated
  as public.

  Example: oneshot-dp figures --cache caches/train --eval-cache caches/test
  --real-labels real.json --out figures
  """

  cache: Path
  """The private training cache."""
  eval_cache: Path
  """The labelled cache that heads are scored on; its labels are treated as
  public."""
  out: Path
  """Directory of the results, not there yet."""
  epsilons: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
  """Privacy budgets, one head each for each delta and draw."""
  deltas: tuple[float, ...] = (1e-6, 8e-7)
  """Delta of each head; well below 1 / rows."""
  num_draws: int = 5
  """Independent draws of the noise, to see the spread; each is charged."""
  real_labels: Path | None = None
  """ImageNet-ReaL's file, a JSON list of lists of labels: score by these too. A
  row's example_id must be the number in its image's name, from 1: extract with
  --source.id-key file_name or --source.id-from-name."""
  references: FlagCreatePairsOff[bool] = False
  """Draw the published numbers, which are of ImageNet, whatever the data set is
  called."""
  baseline: FlagCreatePairsOff[bool] = False
  """Also train the head without noise (epsilon = infinity): NOT PRIVATE."""
  neighboring_relation: RelationName = "add-or-remove-one"
  """Which data sets count as neighbours."""
  noise_seed: int | None = None
  """Research only: noise from this seed, which is NOT PRIVATE."""
  ledger_dir: Path | None = None
  """Where ledgers are kept; default: $ONESHOT_DP_LEDGER_DIR or the user's state
  folder."""
