"""What every command shares: how it is read, what it says and what it shows.

Nothing here knows a command: they come as a mapping from name to module.
"""
