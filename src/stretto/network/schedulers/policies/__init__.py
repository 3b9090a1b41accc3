"""Policies, one file each, found by scanning; each offers one as `OFFER`."""
