"""Point-to-point copies on GPUs: one fused kernel for small runs, engines for large."""
