"""Serving engines of others that take versions: by plug-ins, and by their routes.

In: a version that was pushed. Out: a server that decodes with it, or stays paused.
Never: a server that goes on with half a version.
"""
