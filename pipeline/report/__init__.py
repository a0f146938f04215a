"""What `report` makes of a run: a page for the browser, and its figures."""
