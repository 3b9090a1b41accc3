"""What a studio is given: named, then read from files or run in the simulator."""
