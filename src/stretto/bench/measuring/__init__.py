"""One rank's measuring: contenders proved right, then timed in turn.

In: a case and contenders. Out: what was found of each. Never: a table.
"""
