"""How a studio reaches its reader: a server for this machine, or a page in one file."""
