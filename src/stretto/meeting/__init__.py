"""How ranks meet, are told apart, hear of each other, and learn who died."""
