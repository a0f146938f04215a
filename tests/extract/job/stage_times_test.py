import pytest

from oneshot_dp.extract.job.stage_times import StageTimes


def test_a_wait_is_split_by_what_the_threads_did():
  times = StageTimes.waiting(seconds=2.0, read=1.0, decode=3.0, backbone=5.0)
  assert times == StageTimes(read=0.5, decode=1.5, backbone=5.0)


def test_a_wait_for_nothing():
  times = StageTimes.waiting(seconds=0.0, read=0.0, decode=0.0, backbone=1.0)
  assert times == StageTimes(backbone=1.0)


def test_counters_there_and_back():
  times = StageTimes(read=0.25, decode=1.5, backbone=2.0, write=0.125)
  assert times.counters() == {
    "read_microseconds": 250_000,
    "decode_microseconds": 1_500_000,
    "backbone_microseconds": 2_000_000,
    "write_microseconds": 125_000,
  }
  assert StageTimes.from_counters(times.counters()) == times
  assert StageTimes.from_counters({}) == StageTimes()


@pytest.mark.parametrize("stage", ["read", "decode", "backbone", "write"])
def test_the_slowest_stage_is_the_bottleneck(stage):
  times = StageTimes(**dict.fromkeys(("read", "decode", "backbone"), 1.0))
  slow = StageTimes(**(vars(times) | {stage: 7.0}))
  assert f"{stage} {7 / sum(vars(slow).values()):.0%}" in str(slow)
  assert f"; the bottleneck is {stage}: " in str(slow)
