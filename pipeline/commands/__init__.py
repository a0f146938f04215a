"""The commands.

A new one goes here: one file with its flags and what it does, and one row in
`registry`.
"""
