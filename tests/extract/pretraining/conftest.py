"""What is not in the wheel is tested where it is: in the repository."""

import importlib.util

if importlib.util.find_spec("oneshot_dp.extract.pretraining") is None:
  collect_ignore_glob = ["*_test.py"]
