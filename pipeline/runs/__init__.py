"""What runs: plan, charge, train, score and deliver; see `run.run_request`.

The way of a `train`: a request becomes a `Plan` (everything opened, checked and
priced), `Delivery` charges it, `train_heads` trains and writes, and one rename
shows the results.
"""
