"""The base class of every value that says something about private rows."""

from typing import ClassVar


class Secret:
  """A value that does not reach a log, a traceback or a disk by accident.

  Its representation has the public attributes alone; it is equal to nothing but
  itself and is never serialised or copied. A subclass that is a dataclass is
  declared with `repr=False, eq=False`; its private fields are named `secret_…`.
  """

  public: ClassVar[tuple[str, ...]] = ()
  """Attributes that the representation shows."""

  def __repr__(self) -> str:
    shown = [f"{name}={getattr(self, name)}" for name in self.public]
    return f"{type(self).__name__}({', '.join([*shown, '<private>'])})"

  def __reduce__(self):
    raise TypeError(
      f"{type(self).__name__} is private and is never serialised."
    )
