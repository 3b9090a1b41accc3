"""Move tensors between processes and machines: one-sided, by layout, awaited."""
