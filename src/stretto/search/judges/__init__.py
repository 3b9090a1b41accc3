"""Judges that candidates cannot hurt: child processes with a deadline and a limit."""
