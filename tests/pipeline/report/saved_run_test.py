"""A run that was damaged or forged is one line, and makes no page."""

import json
import shutil

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.report.page import write_report
from oneshot_dp.pipeline.report.saved_run import read_run
from tests.pipeline.command_line import fails
from tests.pipeline.report.sample_runs import write_run


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
  """A run as it usually is; to be read alone."""
  folder = tmp_path_factory.mktemp("run")
  return write_run(folder, epsilons=(1.0,), draws=1, baseline=False)


@pytest.fixture
def run(whole_run, tmp_path):
  """A copy of it, to be spoilt."""
  shutil.copytree(whole_run, tmp_path / "run")
  return tmp_path / "run"


def edit_head(run, **changes):
  """Changes what results.json says of the first head."""
  results = json.loads((run / "results.json").read_text())
  results["heads"][0] |= changes
  (run / "results.json").write_text(json.dumps(results))


def edit_run(run, **changes):
  """Changes what results.json says of the run as a whole."""
  results = json.loads((run / "results.json").read_text())
  results |= changes
  (run / "results.json").write_text(json.dumps(results))


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("epsilon", 0.1),
    ("delta", 1e-9),
    ("private", False),
    ("noise_source", "me"),
    ("noise_multiplier", 100.0),
    ("head", "lamb"),
  ],
)
def test_results_that_a_receipt_contradicts_are_refused(run, name, value):
  edit_head(run, **{name: value})

  with pytest.raises(InputError, match=f"says {name}"):
    read_run(run)


@pytest.mark.parametrize("epsilon", [0.1, 2.0, None])
def test_all_heads_together_for_less_than_they_cost_are_refused(
  tmp_path, epsilon
):
  folder = write_run(tmp_path, epsilons=(1.0, 2.0), draws=2, baseline=False)
  edit_run(folder, epsilon=epsilon)

  with pytest.raises(InputError, match="of all heads together, which by their"):
    read_run(folder)


def test_results_of_heads_elsewhere_are_refused(run, capsys):
  (head,) = (run / "heads").glob("auto-epsilon-1-draw-0")
  shutil.copytree(head, run.parent / "head")
  edit_head(run, path="../head")

  assert "outside of" in fails(capsys, "report", run)


@pytest.mark.parametrize("way", ["", "../heads/"])
def test_results_that_name_a_head_twice_are_refused_unread(run, way):
  """A hundred thousand times the same head would take hours."""
  results = json.loads((run / "results.json").read_text())
  (head,) = results["heads"]
  name = head["path"].removeprefix("heads/")
  results["heads"].append(head | {"path": f"heads/{way}{name}"})
  (run / "results.json").write_text(json.dumps(results))

  with pytest.raises(InputError, match=r"names 'heads/.*' twice: restore"):
    read_run(run)


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("top1", "high"),
    ("top1", None),
    ("top1", float("nan")),
    ("top1", float("inf")),
    ("top1", 1e308),
    ("top1", -0.1),
    ("top5", float("-inf")),
    ("balanced", 1e308),
    ("recall", [0.5, 1e308, None]),
    ("recall", [0.5]),
    ("epsilon", float("nan")),
    ("epsilon", "nan"),
    ("epsilon", -1.0),
    ("delta", 1e308),
    ("noise_multiplier", float("inf")),
    ("noise_multiplier", 1e308),
    ("draw", 10**15),
    ("draw", -2),
    ("confusion", [[1, 2, 3]]),
    ("confusion", [[1, 2], [3, 4], [5, 6]]),
    ("confusion", [[1, 2, 3], [4, 5, 6], [7, 8, -1]]),
    ("confusion", [[1, 2, 3], [4, 5, 6], [7, 8, 10**30]]),
    ("confusion", [[1, 2, 3], [4, 5, 6], [7, 8, 1e308]]),
  ],
)
def test_a_head_s_number_out_of_bounds_is_one_line(run, name, value):
  edit_head(run, **{name: value})

  with pytest.raises(InputError, match=r"results\.json"):
    read_run(run)


@pytest.mark.parametrize("digits", ["1".ljust(5001, "0"), "1e999"])
def test_a_number_that_python_reads_otherwise_is_one_line(run, digits):
  edit_head(run, top1="VALUE")
  text = (run / "results.json").read_text().replace('"VALUE"', digits)
  (run / "results.json").write_text(text)

  with pytest.raises(InputError, match=r"results\.json"):
    read_run(run)


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("epsilon", float("inf")),
    ("epsilon", -1.0),
    ("epsilon", "all"),
    ("delta", float("inf")),
    ("num_examples", float("nan")),
    ("test_counts", [1, 2, 1e308]),
    ("test_counts", [1, 2]),
    ("test_counts", [1, 2, -3]),
    ("evaluation", None),
    ("evaluation", {}),
  ],
)
def test_a_run_s_number_out_of_bounds_is_one_line(run, name, value):
  edit_run(run, **{name: value})

  with pytest.raises(InputError, match=r"results\.json"):
    read_run(run)


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("num_examples", 0),
    ("num_examples", 1e308),
    ("num_examples", float("nan")),
    ("accuracy_sd", float("inf")),
    ("accuracy_sd", -1.0),
    ("accuracy_sd", 1e308),
    ("labels", "some"),
    ("split", 3),
  ],
)
def test_an_evaluation_s_number_out_of_bounds_is_one_line(run, name, value):
  results = json.loads((run / "results.json").read_text())
  edit_run(run, evaluation={**results["evaluation"], name: value})

  with pytest.raises(InputError, match=r"results\.json"):
    read_run(run)


@pytest.mark.parametrize(
  "content",
  [
    "",
    "{",
    "[]",
    "{}",
    '{"format": 1, "heads": []}',
    "\x00",
    "[".ljust(10**5, "["),
  ],
)
def test_what_is_no_results_file_is_refused(run, capsys, content):
  (run / "results.json").write_text(content)

  assert "results.json is damaged" in fails(capsys, "report", run)


def test_report_of_a_damaged_run_is_one_line(run, capsys):
  edit_head(run, top1=float("inf"))

  assert "results.json is damaged" in fails(capsys, "report", run)


def test_inspect_of_a_damaged_run_is_one_line_and_status_1(run, capsys):
  edit_head(run, top1=float("inf"))

  status = main(["inspect", str(run)])

  message = capsys.readouterr().err
  assert status == 1
  assert "results.json is damaged" in message
  assert "Traceback" not in message


@pytest.mark.slow
def test_a_damaged_run_keeps_its_earlier_page(run, capsys):
  before = write_report(run).read_bytes()
  edit_head(run, top1="high")

  fails(capsys, "report", run)

  assert (run / "report.html").read_bytes() == before
