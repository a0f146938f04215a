"""How much memory a process may have."""

import os

import pytest

from oneshot_dp.pipeline.runs.resources import memory_limit

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def write_files(root, files):
  for name, content in files.items():
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


@pytest.mark.parametrize(
  ("files", "expected"),
  [
    pytest.param({}, MACHINE, id="no groups"),
    pytest.param(
      {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "1048576\n",
      },
      1 << 20,
      id="v2, in a container",
    ),
    pytest.param(
      {
        "proc/self/cgroup": "0::/jobs/7\n",
        "sys/fs/cgroup/jobs/7/memory.max": "max\n",
        "sys/fs/cgroup/jobs/memory.max": "2097152\n",
      },
      2 << 20,
      id="v2, of a group above",
    ),
    pytest.param(
      {
        "proc/self/cgroup": "3:cpu,cpuacct:/x\n4:memory:/docker/a\n0::/\n",
        "sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes": "1048576\n",
      },
      1 << 20,
      id="v1",
    ),
    pytest.param(
      {
        "proc/self/cgroup": "4:memory:/docker/a\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "1048576\n",
      },
      1 << 20,
      id="v1, in a container",
    ),
    pytest.param(
      {
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
      },
      MACHINE,
      id="v1, without a limit",
    ),
  ],
)
def test_the_memory_limit_is_the_least_of_machine_and_groups(
  tmp_path, files, expected
):
  write_files(tmp_path, files)
  assert memory_limit(tmp_path) == expected
