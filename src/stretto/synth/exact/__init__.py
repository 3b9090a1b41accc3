"""Small cases in one model, which a solver proves."""
