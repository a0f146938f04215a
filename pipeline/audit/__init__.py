"""Attacks that bound epsilon from below.

A new attack gives scores or counts, and an `AuditReport` of what they prove.
"""
