"""The settings of both stages, as frozen dataclasses, and the errors."""
