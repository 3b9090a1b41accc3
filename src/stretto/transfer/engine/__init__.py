"""Engines: who shares memory, who is connected, and what is under way."""
