"""What callers hand in: arrays of any library, read the same way."""
