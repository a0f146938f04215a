"""Words in, answers out: parsing, complaints, completion, the terminal."""
