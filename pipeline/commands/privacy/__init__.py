"""Commands that keep count of releases, check them and attack them."""
