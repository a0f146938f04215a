"""Embeddings that somebody has already, in npz and Parquet files."""
