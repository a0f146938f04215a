import datetime
import json

import pytest

from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.pipeline.heads.deployments_registry import (
  as_yaml,
  registry_record,
)
from oneshot_dp.pipeline.heads.head_folder import write_head
from tests.pipeline.sample_heads import sample_info, trained_head

# Of the registry's schema: what must be there, and closed lists of words.
REQUIRED = {
  "basic": {
    "name",
    "data_curators",
    "description",
    "intended_use",
    "data_product_type",
    "data_product_region",
    "publication_date",
  },
  "administrative": {"registry_authors"},
}
OTHERS = {
  "basic": {"data_product_sector"},
  "dp_variant": {"variant_name", "data_domain", "unprotected_quantities"},
  "privacy_loss": {
    "privacy_unit",
    "privacy_unit_details",
    "privacy_parameters",
    "privacy_parameters_details",
  },
  "deployment_model": {
    "model_name",
    "model_name_details",
    "actors",
    "release_type",
    "release_type_details",
    "data_source_type",
    "data_source_type_details",
    "access_type",
    "access_type_details",
  },
  "accounting": {"post_processing", "composition"},
  "implementation": {
    "preprocessing_and_hyperparameter_tuning",
    "mechanisms",
    "justification",
  },
  "administrative": {"sources", "notes"},
}


@pytest.fixture
def record(tmp_path):
  info: CacheInfo = sample_info(unit="patient")
  receipt = write_head(tmp_path, trained_head(2.0), info)
  return registry_record(receipt, datetime.date(2027, 3, 1))


def test_it_has_the_fields_of_the_schema_and_no_others(record):
  assert {*record} == {"url_slug", "status", "tier", "deployment"}
  assert (record["status"], record["tier"]) == ("Draft", 3)
  assert {*record["deployment"]} == {*OTHERS}
  for section, found in record["deployment"].items():
    required = REQUIRED.get(section, set())
    assert required <= {*found} <= required | OTHERS[section]
  deployment = record["deployment"]
  assert deployment["basic"]["data_product_type"] == "Machine learning model"
  assert deployment["basic"]["publication_date"] == "2027-03-01"
  assert deployment["dp_variant"]["variant_name"] == "Approximate DP"
  model = deployment["deployment_model"]
  assert model["model_name"] == "Central"
  assert model["release_type"] == "One release"
  assert model["data_source_type"] == "Static"
  assert model["access_type"] == "Non-interactive"


def test_it_says_what_the_receipt_says(record):
  loss = record["deployment"]["privacy_loss"]
  assert loss["privacy_unit"] == "patient"
  assert (
    "one patient, with all its examples, is in"
    in (loss["privacy_unit_details"])
  )
  assert "REPLACE_SPECIAL" in loss["privacy_unit_details"]
  parameters = loss["privacy_parameters"]
  assert parameters["epsilon"] == pytest.approx(2.0)
  assert parameters["delta"] == 1e-5
  accounting = record["deployment"]["accounting"]
  assert "1 x mean" in accounting["composition"]
  assert "5 x gradient" in accounting["composition"]
  # What nobody but its publisher knows.
  assert json.dumps(record).count("FILL IN: ") == 7


def test_its_yaml_is_read_back_as_it_is(record):
  text = as_yaml(record)
  # A YAML 1.1 reader takes a number without a point for a string.
  assert "delta: 1.0e-05\n" in text
  yaml = pytest.importorskip("yaml")
  assert yaml.safe_load(text) == record


def test_hostile_names_stay_strings(tmp_path):
  info = sample_info(dataset='a: "b"\\ #', class_names=("x", "- y", "z"))
  receipt = write_head(tmp_path, trained_head(), info)
  text = as_yaml(registry_record(receipt, datetime.date(2027, 3, 1)))
  (line,) = (x for x in text.splitlines() if x.startswith("    name:"))
  assert json.loads(line.partition(": ")[2]).endswith('a: "b"\\ #')
