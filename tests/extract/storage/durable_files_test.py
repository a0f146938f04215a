from oneshot_dp.extract.storage.durable_files import publish, write_json
from tests.syncs import noted_syncs


def test_a_file_is_on_the_disk_before_its_name(tmp_path, monkeypatch):
  (tmp_path / "work").mkdir()
  (tmp_path / "final").mkdir()
  temporary = tmp_path / "work" / "shard.tmp"
  temporary.write_text("rows")
  synced = noted_syncs(monkeypatch)
  publish(temporary, tmp_path / "final" / "shard")
  assert synced == ["shard.tmp", "replace", "final"]
  assert (tmp_path / "final" / "shard").read_text() == "rows"
  assert not temporary.exists()


def test_json_is_on_the_disk_before_its_name(tmp_path, monkeypatch):
  synced = noted_syncs(monkeypatch)
  write_json(tmp_path / "info.json", {})
  first, *rest = synced
  assert first.startswith("info.json.")
  assert first.endswith(".tmp")
  assert rest == ["replace", tmp_path.name]
