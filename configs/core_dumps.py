"""Keeps the memory of a process, which has private rows, out of crash files."""

import ctypes
import resource

_PR_SET_DUMPABLE = 4  # of linux/prctl.h


def disable_core_dumps() -> None:
  """Makes a crash of this process leave nothing of its memory behind.

  The commands of `oneshot-dp` do so by themselves; in a notebook or a program,
  call it before private rows are in memory. It cannot be undone where the
  system forbids to raise a limit, and other processes of the same user cannot
  attach a debugger from then on. Processes that this one starts have the limit
  on files alone.
  """
  # The limit is for core files. Where core_pattern is a pipe, Linux ignores a
  # limit of 0 and gives all memory to a program such as systemd-coredump,
  # unless the process is marked as one that is not to be dumped.
  _, hard_limit = resource.getrlimit(resource.RLIMIT_CORE)
  resource.setrlimit(resource.RLIMIT_CORE, (0, hard_limit))
  libc = ctypes.CDLL(None)
  if hasattr(libc, "prctl"):  # other systems than Linux have none
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
