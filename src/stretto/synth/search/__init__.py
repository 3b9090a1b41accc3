"""Who is tried for a demand, in which order, and what is kept."""
