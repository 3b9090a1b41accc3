"""Calls that are more than a verb on arrays: many at once, values, pairs of ranks.

In: what a verb does not take as it is. Out: calls of verbs. Never: a plan.
"""
