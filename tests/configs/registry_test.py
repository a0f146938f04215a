import pathlib
import re

import pytest

from oneshot_dp.configs import experiments
from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import ExtractConfig, TfdsSource
from oneshot_dp.configs.registry import experiment_names, load_config
from oneshot_dp.extract.backbones.registry import find_architecture

FOLDER = pathlib.Path(experiments.__file__).parent

GOOD = """
from oneshot_dp.configs.extract_config import ExtractConfig, TfdsSource
def get_config():
  return ExtractConfig(source=TfdsSource(name="mnist"), batch_size=3)
"""


def test_every_file_is_an_experiment():
  files = {path.stem for path in FOLDER.rglob("*.py")} - {"__init__"}
  assert experiment_names() == sorted(files)
  assert len(files) >= 4


@pytest.mark.parametrize("name", experiment_names())
def test_every_experiment_loads_and_says_how_it_is_run(name):
  config = load_config(name)
  assert isinstance(config, ExtractConfig)
  if config.backbone.name != "random_patches":
    architecture = find_architecture(config.backbone.name)
    architecture.reference.changed(config.preprocess)
  (file,) = FOLDER.rglob(f"{name}.py")
  assert re.search(
    rf"oneshot-dp extract {name} |oneshot-dp demo", file.read_text()
  )


def test_two_files_of_one_name_are_two_experiments(tmp_path):
  for size in ("3", "5"):
    (tmp_path / size).mkdir()
    path = tmp_path / size / "mine.py"
    path.write_text(GOOD.replace("batch_size=3", f"batch_size={size}"))
    config = load_config(str(path))
    assert config.source == TfdsSource(name="mnist")
    assert config.batch_size == int(size)


@pytest.mark.parametrize(
  ("text", "said"),
  [
    ("x = 1\n", r"needs a function get_config\(\) that returns"),
    ("get_config = 3\n", r"needs a function get_config\(\)"),
    ("def get_config():\n  return None\n", r"needs a function get_config\(\)"),
    ("def get_config(:\n", "SyntaxError: "),
    ("raise SystemExit(0)", "SystemExit: 0"),
    ("raise GeneratorExit", "GeneratorExit: "),
    ("import no_such_module\n", "ModuleNotFoundError: No module named"),
    ("def get_config():\n  return 1 / 0\n", "ZeroDivisionError: division"),
    (
      GOOD.replace("batch_size", "batch_sise"),
      r"TypeError: .*unexpected keyword argument 'batch_sise'",
    ),
    (GOOD.replace("batch_size=3", "batch_size=0"), "batch_size=0 must be"),
  ],
)
def test_a_file_that_is_none(tmp_path, text, said):
  path = tmp_path / "mine.py"
  path.write_text(text)
  with pytest.raises(InputError, match=said):
    load_config(str(path))


@pytest.mark.parametrize(
  ("name", "said"),
  [
    ("cifar10_vit_ti61", "did you mean cifar10_vit_ti16"),
    ("digits", "there are: arrays_vit_ti16, cifar100_vit_b16, cifar10_vit_b16"),
    ("imagenet", "CONFIG 'imagenet' is not known"),
    ("registry", "CONFIG 'registry' is not known"),
    ("", "CONFIG '' is not known"),
    ("os.path", "CONFIG 'os.path' is not known"),
    ("nowhere/mine.py", "nowhere/mine.py: no such config file"),
  ],
)
def test_a_name_that_is_none(name, said):
  with pytest.raises(InputError) as error:
    load_config(name)
  assert said in str(error.value)
