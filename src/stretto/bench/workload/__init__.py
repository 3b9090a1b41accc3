"""What is measured: calls with their sizes, data and right answers, and who makes them.

In: names and sizes. Out: cases, and the protocol of contenders. Never: a figure.
"""
