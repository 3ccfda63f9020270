"""Several inputs of one partition: their records become one sequence before the live loop sees them."""
