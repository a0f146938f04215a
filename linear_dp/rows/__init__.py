"""What every pass over private rows is held to: types, ids, integer norms."""
