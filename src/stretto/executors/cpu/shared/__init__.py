"""What ranks of one host share: memory that all of them map, and how one wakes another.

What a plan does with that memory is not known here.
"""
