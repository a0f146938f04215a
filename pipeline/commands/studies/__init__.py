"""Commands that study the paper's step, report on runs, and show it all."""
