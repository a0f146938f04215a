"""The commands of `oneshot-dp`: each is one file and one row in `registry`.

A file has `Flags`, a dataclass whose docstrings are the help, and `run(flags)`,
which returns an `Answer`; what is slow to import (JAX, Beam, TFDS,
dp_accounting …) is imported in `run`, since `--help` need not wait for it. One
that never needs JAX says `USES_JAX = False`.
"""
