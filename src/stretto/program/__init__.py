"""What is written: chunks, collectives, the language, shipped and foreign programs."""
