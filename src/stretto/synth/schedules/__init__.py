"""What is asked for and what is found: demands, moves, and their exact time."""
