"""What `report` makes of a run: a page for the browser, and its figures.

A new picture is a function and a row in `drawings.PICTURES`.
"""
