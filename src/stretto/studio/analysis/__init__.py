"""What is computed from what was given, before a view shows it or an answer tells it.

Nothing here imports views, questions or the server.
"""
