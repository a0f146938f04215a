"""Where caches live. A new place to keep them goes here."""
