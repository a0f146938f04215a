"""The audit: attacks what `train` runs, and bounds its ε from below.

canaries.py    rows that are in the data by the toss of a fair coin
attack.py      what one training releases, and a score for each canary
bounds.py      from right guesses to lower bounds of ε
runs.py        whole audits, and how many canaries they take

A bound far below the claim proves nothing; one above it proves that the claim
does not hold.

Sources: Nasr et al., "Tight auditing of differentially private machine
learning" (USENIX Security 2023); Mahloujifar et al., "Auditing f-differential
privacy in one run" (2024).
"""
