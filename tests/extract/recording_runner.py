"""Beam runners that a test can name with --runner."""

from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import Pipeline
from apache_beam.runners.portability.fn_api_runner.fn_runner import (
  FnApiRunner,
  RunnerResult,
)
from apache_beam.runners.runner import (
  PipelineResult,
  PipelineRunner,
  PipelineState,
)


class RecordingRunner(FnApiRunner):
  """Runs the graph in this process, and keeps the options that it was given."""

  options_seen: list[dict[str, Any]] = []  # noqa: RUF012  (per process)

  def run_pipeline(
    self, pipeline: Pipeline, options: PipelineOptions
  ) -> RunnerResult:
    self.options_seen.append(
      options.get_all_options(retain_unknown_options=True)
    )
    return super().run_pipeline(pipeline, options)


class FailedResult(PipelineResult):
  """What a service reports of a job that failed out of sight."""

  def __init__(self):
    super().__init__(PipelineState.FAILED)

  def wait_until_finish(self, duration: Any = None) -> Any:
    return PipelineState.FAILED


class FailingRunner(PipelineRunner):
  """Reports FAILED, and raises nothing."""

  def run_pipeline(
    self, pipeline: Pipeline, options: PipelineOptions
  ) -> PipelineResult:
    return FailedResult()
