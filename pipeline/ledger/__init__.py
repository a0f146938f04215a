"""Records what was spent on private data sets, and delivers what was paid."""
