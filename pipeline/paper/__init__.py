"""The literature's experiments on public data; nothing imports them.

Of Mehta, Thakurta, Kurakin & Cutkosky, "Large Scale Transfer Learning for
Differentially Private Image Classification" (TMLR 2023). Nothing is charged to
a ledger: never run them on private rows. They need jax-privacy.
"""
