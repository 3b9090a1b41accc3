"""Memory that is shared: arenas, links and files, and what peers are told of it."""
