"""Parquet files: rows of a table, its columns, cells with images, and pages."""
