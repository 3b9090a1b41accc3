"""The ranks of a run: started, watched, started again without whom they died of.

In: a task. Out: rank 0's document. Never: how a case is measured.
"""
