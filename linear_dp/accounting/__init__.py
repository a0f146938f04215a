"""What releases cost: from (ε, δ) to σ and back, alone and together."""
