"""From a program to a plan: proved, lowered, and proved again."""
