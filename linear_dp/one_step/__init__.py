r"""The paper: one step from zero weights along a noisy sum of gradients.

    W = −optimizer( (G + round(Z)) · C/(B·‖r‖·n) ),   Z ~ N(0, σ²Δ²)^(K×D)
    G = rint(p0·T) − S,   S_c = Σ_{y=c} u,   T = Σ_c S_c,
    u = rint( x̃ · min(B·‖r‖/C, (B − √D/2 − 1)/‖x̃‖) ),   ‖u‖ ≤ B,  u = 0 at x = 0

Read `clipping` (u, p0, ‖r‖ and Δ), `exact_sum` (S), `release` (G + round(Z),
the only door) and `step` (W). `reference` has all of it in a screenful. Behind
them: `device_sums` and `unit_sums` add rows up, and `trainer` is what receipts
and the registry of heads know.

Source: Mehta et al., "Large Scale Transfer Learning for Differentially Private
Image Classification", TMLR 2023, algorithm 1.
"""
