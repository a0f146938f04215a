"""What tests of commands ask of a bucket's objects."""

from tests.extract import object_server

BUCKET = f"s3://{object_server.BUCKET}"
HEAD = f"{BUCKET}/heads/2"


def names_in(bucket, folder):
  """Names of the objects in a folder of a bucket, as they are within it."""
  names = [name for name in bucket if name.startswith(f"{folder}/")]
  return [name.removeprefix(f"{folder}/") for name in names]
