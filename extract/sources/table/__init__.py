"""Rows of files: Parquet, Arrow as `datasets` saves it, WebDataset tars.

A new kind of file is a class like `TarImages` beside it, and a line in
`examples.open_images` and `files.EXTENSIONS`.
"""
