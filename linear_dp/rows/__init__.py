"""What every pass over private rows is held to: types, ids, integer norms.

Values that say something about them are a `secret.Secret`.
"""
