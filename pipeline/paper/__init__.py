"""The experiments of the literature: ablations and figures."""
