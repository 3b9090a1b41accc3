"""What a person knows about a machine, as rules that narrow a search."""
