"""Two finished runs, and the pages about them."""

import contextlib
import dataclasses
import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.pipeline.report.pictures import Picture, Plan
from oneshot_dp.pipeline.report.report import WrittenReport, write_report
from oneshot_dp.pipeline.runs import pictures
from oneshot_dp.pipeline.runs.run import Run
from oneshot_dp.pipeline.runs.sweep import run_sweep
from tests.pipeline.report.parsed_page import ParsedPage
from tests.pipeline.sample_caches import CLASSES, write_clusters

HOSTILE = (
  "<script>alert(1)</script>",
  '"><img src=https://a.example/x>',
  "$x_1$ & 猫",
)
NAMES = (*HOSTILE, *(f"class {i}" for i in range(3, CLASSES)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reported:
  """A sweep, `run`, beside its `train`, `test` and `ledgers`; and its page."""

  folder: pathlib.Path
  written: WrittenReport
  page: ParsedPage

  @property
  def run(self) -> pathlib.Path:
    return self.folder / "run"

  def copied(self, to: pathlib.Path) -> pathlib.Path:
    """The run in another place, to be changed."""
    shutil.copytree(self.run, to)
    return to


def write_hard(out: pathlib.Path, counts: tuple[int, ...], **changes) -> None:
  """Clusters so near each other that some rows are taken for others."""
  write_clusters(out, counts, d=3, class_names=NAMES, **changes)


def swept(folder: pathlib.Path, **changes: Any) -> pathlib.Path:
  """A sweep in `folder`, which is made with its caches where they are not."""
  if not (folder / "train").exists():
    write_hard(folder / "train", (60, 50, 40, 30))
    write_hard(folder / "test", (20,) * CLASSES, split="test")
  options: dict[str, Any] = {
    "out": folder / "run",
    "num_draws": 2,
    "baseline": True,
    "ledger_dir": folder / "ledgers",
  }
  of_run = options | {k: changes.pop(k) for k in options if k in changes}
  run = Run(
    train=open_cache(folder / "train"),
    evaluation=open_cache(folder / "test"),
    **of_run,
  )
  fields: dict[str, Any] = {
    "config": HeadConfig(head="momentum"),
    "privacy": PrivacyConfig(delta=1e-5),
    "epsilons": (0.5, 2.0, 8.0),
  }
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(pictures, "draw", lambda *_: None)
    run_sweep(run, **fields | changes)
  return run.out


def reported(
  run: pathlib.Path, *, drawn: bool = False, **options: Any
) -> Reported:
  """The page, whose pictures take nearly all the time, and are left out."""
  given: dict[str, Any] = {"ledger_dir": run.parent / "ledgers"} | options
  with pytest.MonkeyPatch.context() as patch:
    if not drawn:
      patch.setattr("oneshot_dp.pipeline.report.page.draw_picture", undrawn)
    written = write_report(run, **given)
  return Reported(
    folder=run.parent, written=written, page=ParsedPage(written.page)
  )


@contextlib.contextmanager
def edited(run: pathlib.Path, name: str = "config.json") -> Iterator[Any]:
  """A JSON file of a run, to be changed."""
  value = json.loads((run / name).read_text())
  yield value
  (run / name).write_text(json.dumps(value))


def undrawn(plan: Plan, path: pathlib.Path, **_: bool) -> Picture:
  for suffix in (".png", ".pdf"):
    path.with_suffix(suffix).write_bytes(b"undrawn")
  nothing = "data:,"
  return Picture(plan.alt, nothing, nothing, nothing, nothing, 1, 1)


@pytest.fixture(scope="package")
def sweep(tmp_path_factory) -> Reported:
  return reported(swept(tmp_path_factory.mktemp("reported")), drawn=True)
