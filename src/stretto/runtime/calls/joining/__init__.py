"""Meeting under launchers: what they say of ranks, and ranks that we start.

In: an environment, or a function. Out: a communicator. Never: a call.
"""
