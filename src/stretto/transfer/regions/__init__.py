"""Memory that others may reach: here and at peers, shared, leased, and taken back.

In: tensors, files and stores, with a name and a layout. Out: regions and views that
are put to and got from, each under an epoch. Never: a late write, once `withdraw` or
the end of a lease has returned.
"""
