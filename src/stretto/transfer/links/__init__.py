"""Links: small records and staged bytes between two engines, whatever lies between."""
