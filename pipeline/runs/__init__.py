"""The one runner of train and sweep, and what a run leaves behind."""
