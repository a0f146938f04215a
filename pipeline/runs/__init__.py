"""Carries out requests: plan, charge, train, score and deliver.

`run.run_request` does so for `train` and `sweep`: a request becomes a `Plan`
(everything opened, checked and priced), `Delivery` charges it, heads are
trained and written, and one rename shows the results.
"""
