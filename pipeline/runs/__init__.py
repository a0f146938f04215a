"""Carries out requests: plan, charge, train, score and deliver.

`run.run_request` does so for `train` and `sweep`: a request becomes a `Plan`
(everything opened, checked and priced), `Delivery` charges it, `train_heads`
trains and writes, and one rename shows the results.
"""
