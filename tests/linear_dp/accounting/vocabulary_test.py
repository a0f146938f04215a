import subprocess
import sys

import dp_accounting
import pytest

from oneshot_dp.linear_dp.accounting import vocabulary

OURS = "from oneshot_dp.linear_dp.accounting import vocabulary; "
THREADS = """
import threading
from oneshot_dp.linear_dp.accounting import vocabulary

def first():
  from dp_accounting import NeighboringRelation, get_sigma_gaussian

def second():
  import dp_accounting.pld.privacy_loss_distribution as pld

def third():
  from dp_accounting import gaussian_mechanism, rdp

threads = [
  threading.Thread(target=each, daemon=True)
  for each in (first, second, third) * 3
]
for thread in threads:
  thread.start()
for thread in threads:
  thread.join(60)
assert not any(thread.is_alive() for thread in threads)
"""


def test_every_word_is_that_of_dp_accounting():
  for name in set(vocabulary.__all__) - {"dp_accounting"}:
    assert getattr(vocabulary, name) is getattr(dp_accounting, name)
  assert vocabulary.dp_accounting is dp_accounting


@pytest.mark.slow
@pytest.mark.parametrize(
  "script",
  [
    # The words alone, without SciPy.
    OURS + "import sys; assert not {'scipy', 'numpy'} & set(sys.modules)",
    # Whatever else is asked for, by whichever way of importing, and then again;
    # and what there is not.
    OURS
    + "import dp_accounting as d; assert not hasattr(d, '__no_such__');"
    + " assert d.rdp.RdpAccountant;"
    + " from dp_accounting import NeighboringRelation as N, DpEvent, pld;"
    + " assert N is vocabulary.NeighboringRelation is d.NeighboringRelation;"
    + " assert d.get_sigma_gaussian is d.gaussian_mechanism.get_sigma_gaussian;"
    + " assert not hasattr(d, 'no_such'); assert d.DpEventBuilder",
    # Where somebody has imported all of it before.
    "import dp_accounting as d; " + OURS + "assert vocabulary.dp_accounting is"
    " d; assert d.NeighboringRelation is vocabulary.NeighboringRelation",
    THREADS,
  ],
  ids=["alone", "asked for", "imported before", "threads"],
)
def test_dp_accounting_is_whole_when_it_is_asked_for(script):
  done = subprocess.run(
    [sys.executable, "-c", script], capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
