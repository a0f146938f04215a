"""Experiments of the literature on public data; nothing imports them.

They repeat Mehta, Thakurta, Kurakin & Cutkosky, "Large Scale Transfer Learning
for Differentially Private Image Classification" (TMLR 2023). No ledger is
charged: never run them on private rows.
"""
