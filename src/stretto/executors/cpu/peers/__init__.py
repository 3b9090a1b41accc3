"""The other ranks: who has a core, who is on another host, who is late or lost."""
